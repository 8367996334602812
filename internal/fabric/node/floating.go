package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// announceInterval is the time between the two announcements of an address (RFC 5227, section 1.1).
const announceInterval = 2 * time.Second

// addFloating puts a floating address on an uplink and announces it. The address has the scope of the link, so the node never chooses it as the
// source of its own packets.
func (f *Fabric) addFloating(name string, address netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	err = netlink.AddrAdd(link, floatingAddr(address))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	failpoint.Hit("node.after-floating")
	if err := announceFloating(link, address); err != nil {
		return fmt.Errorf("announcing %s on %s: %w", address, name, err)
	}
	f.again.after(announceInterval, func() { _ = f.node.Do(func() error { return announceAgain(name, address) }) })
	return nil
}

// deleteFloating takes a floating address off an uplink. Address and link may be gone already.
func deleteFloating(name string, address netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = netlink.AddrDel(link, floatingAddr(address))
	failpoint.Hit("node.after-floating-off")
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

func floatingAddr(address netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(32, 32)}, Scope: int(netlink.SCOPE_LINK)}
}

// forgetConnections deletes the tracked connections that were translated for a floating address, in either direction.
func forgetConnections(address netip.Addr) error {
	to, from := &netlink.ConntrackFilter{}, &netlink.ConntrackFilter{}
	if err := errors.Join(to.AddIP(netlink.ConntrackOrigDstIP, address.AsSlice()), from.AddIP(netlink.ConntrackReplyDstIP, address.AsSlice())); err != nil {
		return err
	}
	_, err := dump(func() ([]struct{}, error) {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, to, from)
		return nil, err
	})
	failpoint.Hit("node.after-connections")
	return err
}

// announceAgain announces an address once more if the link still bears it.
func announceAgain(name string, address netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if addressPrefix(a).Addr() == address {
			return announceFloating(link, address)
		}
	}
	return nil
}

// announceFloating announces an address, so that neighbours that know it by another MAC address learn this one at once. Links that are no Ethernet
// have no ARP.
func announceFloating(link netlink.Link, address netip.Addr) error {
	mac := link.Attrs().HardwareAddr
	if link.Attrs().EncapType != "ether" || len(mac) != 6 {
		return nil
	}
	return announceOn(link.Attrs().Index, mac, address)
}

// later carries out what is due after a while, until it is closed.
type later struct {
	mu     sync.Mutex
	closed bool
	timers map[*time.Timer]bool
}

func (l *later) after(d time.Duration, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.timers == nil {
		l.timers = map[*time.Timer]bool{}
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		l.mu.Lock() // held meanwhile: close waits
		defer l.mu.Unlock()
		delete(l.timers, timer)
		if !l.closed {
			do()
		}
	})
	l.timers[timer] = true
}

func (l *later) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for timer := range l.timers {
		timer.Stop()
	}
}
