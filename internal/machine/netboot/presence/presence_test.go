package presence_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
)

const known = "02:00:00:00:00:01"

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func address() netip.Addr { return netip.MustParseAddr("10.77.1.1") }

func boot(generation int64) *netboot.Boot {
	return &netboot.Boot{Machine: "uid", Generation: generation, Kernel: image.DigestOf([]byte("k")), Initrd: image.DigestOf([]byte("i"))}
}

func table(revision int64, b *netboot.Boot) *netboot.Table {
	return &netboot.Table{Term: 2, Revision: revision, Machines: map[string]*netboot.Machine{
		known: {Name: "n1", MAC: known, Address: address(), Boot: b},
	}}
}

// story is what a presence told.
type story []string

func (s *story) sink(e netboot.Event) {
	*s = append(*s, fmt.Sprintf("%s of %d", e.Stage, e.Generation))
}

func hear(p *presence.Presence, loader bool) {
	p.Hear(presence.Heard{MAC: known, Netboot: true, Loader: loader, Discover: true, Firmware: api.FirmwareBIOS}, now())
}

func load(p *presence.Presence) {
	p.Fetching(address(), true, now())
	p.Delivered(address(), boot(1).Kernel, now())
	p.Delivered(address(), boot(1).Initrd, now())
}

func TestEachStageOfABootIsToldOnce(t *testing.T) {
	var s story
	p := presence.New("boot0", s.sink)
	p.SetTable(table(1, boot(7)))
	hear(p, false)
	hear(p, false)
	p.Fetching(address(), false, now())
	hear(p, true)
	load(p)
	p.Hear(presence.Heard{MAC: known, Discover: true}, now()) // its system's DHCP
	load(p)
	want := story{"firmware of 7", "dhcp of 7", "loader of 7"}
	if !slices.Equal(s, want) {
		t.Errorf("%q, want %q", s, want)
	}
}

func TestAMachineThatStartsAgainIsToldAgain(t *testing.T) {
	for name, loader := range map[string]bool{"firmware": false, "iPXE in ROM": true} {
		var s story
		p := presence.New("boot0", s.sink)
		p.SetTable(table(1, boot(7)))
		for range 2 {
			hear(p, loader)
			load(p)
		}
		want := story{"firmware of 7", "dhcp of 7", "loader of 7", "firmware of 7", "dhcp of 7", "loader of 7"}
		if !slices.Equal(s, want) {
			t.Errorf("%s: %q, want %q", name, s, want)
		}
	}
}

// What a machine fetched for an earlier boot does not count for the next one.
func TestStagesBelongToTheirGeneration(t *testing.T) {
	var s story
	p := presence.New("boot0", s.sink)
	p.SetTable(table(1, boot(7)))
	hear(p, false)
	p.Fetching(address(), true, now())
	p.Delivered(address(), boot(7).Kernel, now())
	p.SetTable(table(2, boot(8)))
	p.Delivered(address(), boot(8).Initrd, now())
	hear(p, false)
	load(p)
	if slices.Contains(s, "loader of 7") || s[len(s)-1] != "loader of 8" {
		t.Errorf("%q", s)
	}
}

func TestAnOlderTableChangesNothing(t *testing.T) {
	p := presence.New("boot0", func(netboot.Event) {})
	p.SetTable(table(5, boot(8)))
	older := table(9, boot(7))
	older.Term = 1
	if p.SetTable(table(4, boot(7))) || p.SetTable(older) {
		t.Error("an older table was taken")
	}
	if b, _ := presence.BootOf(p.Table(), known); b.Generation != 8 {
		t.Errorf("generation %d", b.Generation)
	}
	newer := table(1, nil)
	newer.Term = 3
	if !p.SetTable(newer) {
		t.Error("a newer leader's table was refused")
	}
}

func TestAfterARestartMachinesAreKnownByTheTable(t *testing.T) {
	p := presence.New("boot0", func(netboot.Event) {})
	p.SetTable(table(1, boot(7)))
	if c, ok := p.Of(known, address()); !ok || c.Port != "boot0" || c.Boot.Generation != 7 {
		t.Errorf("%+v, %t", c, ok)
	}
	if _, ok := p.Of(known, netip.MustParseAddr("10.77.1.2")); ok {
		t.Error("it is at an address it was never given")
	}
}

func TestStrangersAreForgottenBeforeTheyAreTooMany(t *testing.T) {
	p := presence.New("boot0", func(netboot.Event) {})
	p.SetTable(table(1, boot(7)))
	hear(p, false)
	for i := range 40_000 {
		mac := fmt.Sprintf("06:00:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff)
		p.Bind(mac, netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)}))
	}
	last := netip.AddrFrom4([4]byte{10, 78, byte(39_999 >> 8 & 0xff), byte(39_999 & 0xff)})
	if _, ok := p.At(last); !ok {
		t.Error("the last one is not known")
	}
	if c, ok := p.Of(known, address()); !ok || c.Firmware != api.FirmwareBIOS {
		t.Error("a machine of the table was forgotten")
	}
}
