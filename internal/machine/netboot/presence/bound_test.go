package presence

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

func TestStrangersDoNotFillTheMemory(t *testing.T) {
	p := New("boot0", func(netboot.Event) {})
	for i := range maxStrangers + 1000 {
		p.Bind(fmt.Sprintf("06:00:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(p.entries) > maxStrangers || len(p.byAddress) > maxStrangers {
		t.Errorf("%d strangers with %d addresses are known, want at most %d", len(p.entries), len(p.byAddress), maxStrangers)
	}
}
