package bootagent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// An interface with a standby is three to the kernel (net_failover.rst): virtio_net makes a master, which has the addresses, and is its standby itself. A
// function with the same MAC becomes the master's primary when it comes, and carries the traffic for as long as it is there. Nothing but the master is
// ever given an address.

// classNet is where the kernel shows network interfaces (Documentation/ABI/testing/sysfs-class-net).
const classNet = "/sys/class/net"

// What the names of a master's parts end with. That of the standby is udev's.
const (
	standbySuffix = "nsby"
	primarySuffix = "npri"
)

// masterOf returns the master of an interface, "" for none.
func masterOf(dir, name string) string {
	at, err := os.Readlink(filepath.Join(dir, name, "master"))
	if err != nil {
		return ""
	}
	return filepath.Base(at)
}

// part is an interface that a master of two is made of.
type part struct {
	name, master string
	primary      bool
}

// partsOf returns the parts of all masters. A standby is the same device as its master. A tenant's bridge or bond is no device.
func partsOf(dir string) (parts []part, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		p := part{name: e.Name(), master: masterOf(dir, e.Name())}
		own, err1 := filepath.EvalSymlinks(filepath.Join(dir, p.name, "device"))
		whole, err2 := filepath.EvalSymlinks(filepath.Join(dir, p.master, "device"))
		if p.master != "" && err1 == nil && err2 == nil {
			p.primary = own != whole
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// partNames returns the names that the parts of masters are to have, by those that they have.
func partNames(dir string) (map[string]string, error) {
	parts, err := partsOf(dir)
	names := map[string]string{}
	for _, p := range parts {
		switch {
		case strings.HasSuffix(p.name, standbySuffix) || strings.HasSuffix(p.name, primarySuffix):
		case p.primary:
			names[p.name] = p.master + primarySuffix
		default:
			names[p.name] = p.master + standbySuffix
		}
	}
	return names, err
}

// primaryOf returns the name of the function that has come to a master, "" for none.
func primaryOf(dir, master string) string {
	parts, _ := partsOf(dir)
	i := slices.IndexFunc(parts, func(p part) bool { return p.master == master && p.primary })
	if i < 0 {
		return ""
	}
	return parts[i].name
}

// nameParts gives the parts of masters their names, and keeps IPv6 off them. One that is gone meanwhile needs none.
func nameParts(socket int) error {
	names, err := partNames(classNet)
	if err != nil {
		return err
	}
	for from, to := range names {
		if err := renameLink(socket, from, to); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
		if err := writeSettings(map[string]string{"ipv6/conf/" + to + "/disable_ipv6": "1"}); err != nil {
			return err
		}
	}
	return nil
}

// findPair returns the master of the interfaces with a MAC, waiting for the standby's driver until ctx ends.
func findPair(ctx context.Context, dir, mac string) (*net.Interface, error) {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			address, _ := os.ReadFile(filepath.Join(dir, e.Name(), "address"))
			if master := masterOf(dir, e.Name()); master != "" && strings.TrimSpace(string(address)) == mac {
				return net.InterfaceByName(master)
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("no network interface with the MAC %s has a standby: its kernel needs virtio_net with net_failover (Linux 4.18 or later)", mac)
		}
	}
}

// hasPrimary reports whether a function with a MAC has come to its master.
func hasPrimary(dir, mac string) bool {
	names, err := filepath.Glob(filepath.Join(dir, "*", "master"))
	parts := 0
	for _, name := range names {
		address, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "address"))
		if strings.TrimSpace(string(address)) == mac {
			parts++
		}
	}
	return err == nil && parts > 1
}

// joinPatience is how long a function may take to have a carrier.
const joinPatience = 30 * time.Second

// joined announces the address of an interface over the function that has come to it, once that carries frames.
func (a *Agent) joined(i guestlink.Interface, name string) {
	if masterOf(classNet, name) == "" {
		return // the master itself
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		a.log.Warn("a function that came can't be named", "error", err)
		return
	}
	err = nameParts(socket)
	_ = unix.Close(socket)
	if err != nil {
		a.log.Warn("a function that came can't be named", "function", name, "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), joinPatience)
	defer cancel()
	primary := primaryOf(classNet, i.Name)
	if primary == "" {
		return // gone again
	}
	if err := awaitCarrier(ctx, primary); err != nil {
		a.log.Warn("a function that came carries no frames", "interface", i.Name, "error", err)
		return
	}
	a.log.Info("a function carries the traffic", "interface", i.Name)
	a.announce(i)
}

// announceStandbys announces the addresses of all interfaces that have a standby: a function is gone, or the machine is elsewhere.
func (a *Agent) announceStandbys() {
	a.following.mu.Lock()
	defer a.following.mu.Unlock()
	for _, i := range a.following.interfaces {
		if i.Standby {
			go a.announce(i)
		}
	}
}

// announce says by ARP where an address is, to bridges and switches on the way, several times since one may be lost.
func (a *Agent) announce(i guestlink.Interface) {
	for _, pause := range []time.Duration{0, 200 * time.Millisecond, time.Second} {
		time.Sleep(pause)
		if err := sendFrame(i.Name, gratuitousARP(i)); err != nil {
			a.log.Warn("an address can't be announced", "interface", i.Name, "error", err)
			return
		}
	}
}

// gratuitousARP is an ARP announcement (RFC 5227, section 1.1) of an interface's own address, as a frame to all.
func gratuitousARP(i guestlink.Interface) []byte {
	mac, err := net.ParseMAC(i.MAC)
	if err != nil || len(mac) != 6 || !i.Address.Addr().Is4() {
		return nil
	}
	address := i.Address.Addr().As4()
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_ARP)
	frame = append(frame, 0, 1, 8, 0, 6, 4, 0, 1) // a request for IPv4 over Ethernet (RFC 826)
	frame = append(append(frame, mac...), address[:]...)
	return append(append(frame, make([]byte, 6)...), address[:]...)
}

// sendFrame sends a frame by an interface.
func sendFrame(name string, frame []byte) error {
	if frame == nil {
		return nil
	}
	nic, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: nic.Index})
}
