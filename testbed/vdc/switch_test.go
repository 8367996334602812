package vdc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// On a data network that is a managed switch, machines and what is at the cable out of the data centre reach each other where their ports have a VLAN in
// common, and only there. What they send are ordinary streams, whose packets the kernel would cut and sum up last of all.
func TestMachinesOnAManagedSwitchReachWhatTheirPortsHaveAVLANInCommonWith(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	op := newOperator(t)
	cfg := testConfig(op.Path())
	cfg.Switch, cfg.DataLink = true, "nmdata0"
	dc, err := Start(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, dc.Close()) })
	bios, uefi := newOperator(t), newOperator(t)
	plugIn(t, dc, "bios1", bios)
	plugIn(t, dc, "uefi1", uefi)
	for i, at := range []struct {
		ns   netns.Handle
		link string
	}{{op, "nmdata0"}, {bios, "nic"}, {uefi, "nic"}} {
		address(t, at.ns, at.link, fmt.Sprintf("10.97.1.%d/24", i+1))
	}

	must(t, streams(t, bios, uefi, "10.97.1.3"))
	must(t, streams(t, op, bios, "10.97.1.2"))
	must(t, streams(t, uefi, op, "10.97.1.1"))

	text, err := os.ReadFile(SettingsFile(testName))
	must(t, err)
	settings, err := ethernet.Parse(text, t.TempDir())
	must(t, err)
	if want := map[string]bool{SwitchName + "/s-bios1": false, SwitchName + "/s-uefi1": false}; !maps.Equal(settings.Places(), want) {
		t.Errorf("the settings manage %v, want %v", settings.Places(), want)
	}
	port := func(name string) string { m, err := dc.Machine(name); must(t, err); return m.SwitchPort }
	must(t, dc.vsctl(t.Context(), "set", "port", port("bios1"), "tag=5", "--", "set", "port", port("uefi1"), "tag=6"))
	for _, to := range []struct {
		ns      netns.Handle
		address string
	}{{uefi, "10.97.1.3"}, {op, "10.97.1.1"}} {
		forget(t, bios, op, uefi)
		if err := streams(t, bios, to.ns, to.address); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("from a port of VLAN 5, what is at %s: %v; want nobody to answer for this address", to.address, err)
		}
	}
	must(t, dc.vsctl(t.Context(), "set", "port", port("uefi1"), "tag=5"))
	must(t, streams(t, bios, uefi, "10.97.1.3"))
}

// plugIn puts a NIC into a namespace that is connected as a machine's NIC on the data network would be.
func plugIn(t *testing.T, dc *DataCentre, machine string, ns netns.Handle) {
	t.Helper()
	m, err := dc.find(machine)
	must(t, err)
	in, err := netlink.NewHandleAt(vnetns.NsHandle(dc.inside.FD()))
	must(t, err)
	defer in.Close()
	bridge, err := in.LinkByName(m.cable)
	must(t, err)
	end := named(dataPort + machine)
	end.MasterIndex = bridge.Attrs().Index
	must(t, in.LinkAdd(&netlink.Veth{LinkAttrs: end, PeerName: "nic", PeerNamespace: netlink.NsFd(ns.FD())}))
	must(t, raise(in, end.Name))
}

// address gives a link an address, and raises it, as well as the one by which the kernel tells senders that nobody answers.
func address(t *testing.T, ns netns.Handle, name, text string) {
	t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
	must(t, err)
	defer h.Close()
	link, err := h.LinkByName(name)
	must(t, err)
	addr, err := netlink.ParseAddr(text)
	must(t, err)
	must(t, h.AddrAdd(link, addr))
	must(t, h.LinkSetUp(link))
	must(t, raise(h, "lo"))
}

// forget lets namespaces ask for hardware addresses again.
func forget(t *testing.T, all ...netns.Handle) {
	t.Helper()
	for _, ns := range all {
		h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
		must(t, err)
		neighbours, err := h.NeighList(0, netlink.FAMILY_V4)
		must(t, err)
		for _, n := range neighbours {
			if n.State&netlink.NUD_PERMANENT == 0 && !n.IP.IsMulticast() {
				must(t, h.NeighDel(&n))
			}
		}
		h.Close()
	}
}

// streams sends a MiB by TCP from one namespace to an address in another one.
func streams(t *testing.T, from, to netns.Handle, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var listener net.Listener
	err := to.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address+":0")
		return err
	})
	must(t, err)
	defer listener.Close()
	sent, got := bytes.Repeat([]byte("nearmetal"), 1<<20/9), make(chan []byte, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn)
		got <- all
	}()
	var conn net.Conn
	err = from.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return err
	}
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	conn.Close()
	select {
	case all := <-got:
		if !bytes.Equal(all, sent) {
			return fmt.Errorf("%d bytes of %d arrived", len(all), len(sent))
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
