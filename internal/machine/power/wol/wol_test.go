package wol_test

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/wol"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

func target(macs ...string) power.Target {
	return power.Target{Name: "m1", Control: api.PowerControl{Kind: api.PowerWakeOnLAN}, MACs: macs}
}

func TestWakeOnLANMeetsTheContract(t *testing.T) {
	t.Parallel()
	powertest.Run(t, func(t *testing.T) powertest.Machine {
		listener := netip.MustParseAddrPort(powertest.FreeUDP(t))
		return powertest.Machine{
			Open:   func(t power.Target) (power.Switch, error) { return wol.New(t, wol.Options{Destination: listener}) },
			Target: target("52:54:00:12:34:56"), Deaf: true,
		}
	})
}

// AMD white paper 20213, "Magic Packet Technology": FFh six times, then the address sixteen times.
func TestTheMagicPacketIsAsInTheWhitePaper(t *testing.T) {
	t.Parallel()
	mac, err := net.ParseMAC("01:02:03:04:05:06")
	if err != nil {
		t.Fatal(err)
	}
	got := wol.Packet(mac)
	want := append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat([]byte{1, 2, 3, 4, 5, 6}, 16)...)
	if !bytes.Equal(got, want) || len(got) != 102 {
		t.Errorf("got %x", got)
	}
}

func TestATargetWithoutAMACIsRefused(t *testing.T) {
	t.Parallel()
	addressed := target("52:54:00:12:34:56")
	addressed.Control.Address = "10.0.0.7"
	for name, bad := range map[string]power.Target{
		"none": target(), "words": target("abc"), "InfiniBand": target("00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"), "an address": addressed,
	} {
		if _, err := wol.New(bad, wol.Options{}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// cable is a veth pair in a network namespace of its own: packets sent at one end come out of the other.
func cable(t *testing.T) netns.Handle {
	t.Helper()
	needs.Root(t, "makes a network namespace")
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	err = ns.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		for name, address := range map[string]string{"near": "10.1.1.1/24", "far": "10.1.2.1/24"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestBothKindsOfPacketLeaveByTheInterface(t *testing.T) {
	t.Parallel()
	ns := cable(t)
	mac, _ := net.ParseMAC("52:54:00:12:34:56")
	err := ns.Do(func() error {
		far, err := net.InterfaceByName("far")
		if err != nil {
			return err
		}
		const all = 0x0003 // ETH_P_ALL
		conn, err := packet.Listen(far, packet.Raw, all, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return err
		}
		s, err := wol.New(target(mac.String()), wol.Options{Interface: "near"})
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		var frame [2048]byte
		for sent := 0; len(seen) < 2; {
			n, _, err := conn.ReadFrom(frame[:])
			if err != nil { // again: the kernel sends nothing until it has noticed that both ends of a new cable are up
				if sent++; sent > 200 {
					t.Errorf("only %v came out: %v", seen, err)
					return nil
				}
				if err := s.On(t.Context(), power.BootDevice{Network: true}); err != nil {
					return err
				}
				if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
					return err
				}
				continue
			}
			if n < 14+102 || !bytes.HasPrefix(frame[:n], bytes.Repeat([]byte{0xff}, 6)) || !bytes.Contains(frame[14:n], wol.Packet(mac)) {
				continue
			}
			switch {
			case frame[12] == 0x08 && frame[13] == 0x42:
				seen["raw"] = true
			case frame[12] == 0x08 && frame[13] == 0x00 && frame[36] == 0 && frame[37] == wol.Port: // UDP's destination port after 20 bytes of IPv4
				seen["UDP"] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnInterfaceThatIsNotThereIsAnErrorWithItsName(t *testing.T) {
	t.Parallel()
	s, err := wol.New(target("52:54:00:12:34:56"), wol.Options{Interface: "nosuch0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.On(t.Context(), power.BootDevice{}); err == nil || !strings.Contains(err.Error(), "nosuch0") {
		t.Errorf("got %v", err)
	}
}
