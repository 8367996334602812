package pool

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestANumberHasOneOwnerUntilThatIsFenced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		first, last := rapid.IntRange(0, 3).Draw(t, "first"), rapid.IntRange(2, 8).Draw(t, "last")
		p := New(first, last)
		owners := map[int]map[string]bool{} // of what is not free
		owner := func() string { return fmt.Sprint("o", rapid.IntRange(0, 3).Draw(t, "owner")) }
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"hold", "take", "take", "take", "fence"}).Draw(t, "step") {
			case "hold":
				n, o := rapid.IntRange(0, 10).Draw(t, "number"), owner()
				if owners[n] == nil {
					owners[n] = map[string]bool{}
				}
				owners[n][o] = true
				if alone := p.Hold(n, o); alone != (len(owners[n]) == 1) {
					t.Fatalf("%s holds %d of %v alone: %t", o, n, owners[n], alone)
				}
			case "take":
				want, free := first, false
				for ; want <= last; want++ {
					if free = len(owners[want]) == 0; free {
						break
					}
				}
				if n, ok := p.Lowest(); ok != free || ok && n != want {
					t.Fatalf("lowest: got %d, %t, want %d, %t, with %v", n, ok, want, free, owners)
				}
				o := owner()
				n, ok := p.Take(o)
				if ok != free || ok && n != want {
					t.Fatalf("taken: got %d, %t, want %d, %t, with %v", n, ok, want, free, owners)
				}
				if ok {
					owners[n] = map[string]bool{o: true}
				}
			case "fence":
				o := owner()
				p.Fence(o)
				for _, of := range owners {
					delete(of, o)
				}
			}
			for n := range 11 {
				if p.Holds(n) != (len(owners[n]) > 0) {
					t.Fatalf("number %d is held: %t, its owners are %v", n, p.Holds(n), owners[n])
				}
			}
		}
	})
}

func TestTheLastNumberOfATypeIsGivenOutOnce(t *testing.T) {
	t.Parallel()
	p := New[uint16](math.MaxUint16-1, math.MaxUint16)
	for _, want := range []uint16{math.MaxUint16 - 1, math.MaxUint16} {
		if n, ok := p.Take("a"); !ok || n != want {
			t.Errorf("got %d, %t, want %d", n, ok, want)
		}
	}
	for range 2 {
		if n, ok := p.Take("b"); ok {
			t.Errorf("got %d, want none", n)
		}
	}
	if n, ok := New(1, 0).Take("a"); ok {
		t.Errorf("an empty pool gives %d", n)
	}
}

func TestABlockHasTheAddressesThatAreInIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(8, 24).Draw(t, "length")
		bits := rapid.IntRange(length, 30).Draw(t, "bits")
		base := Offset(netip.MustParseAddr("10.0.0.0"), rapid.Uint32Range(0, 1<<24-1).Draw(t, "base"))
		s, ok := Cut(netip.PrefixFrom(base, length), bits)
		if !ok {
			t.Fatalf("%s/%d can't be cut into /%d", base, length, bits)
		}
		block := rapid.IntRange(0, s.Count()-1).Draw(t, "block")
		prefix, ok := s.At(block)
		a := Offset(prefix.Addr(), rapid.Uint32Range(0, 1<<(32-bits)-1).Draw(t, "host"))
		if got, in := s.BlockOf(a); !ok || !in || got != block || !prefix.Contains(a) || prefix != prefix.Masked() {
			t.Fatalf("block %d is %s, %s is in block %d, %t", block, prefix, a, got, in)
		}
		if _, ok := s.At(s.Count()); ok {
			t.Fatalf("there are %d blocks, and one more", s.Count())
		}
	})
}

func TestWhatIsNoPrefixOfBlocksIsNotCut(t *testing.T) {
	t.Parallel()
	for text, bits := range map[string]int{"10.0.0.0/24": 23, "fd00::/8": 64, "10.0.0.0/8": 33} {
		if _, ok := Cut(netip.MustParsePrefix(text), bits); ok {
			t.Errorf("%s was cut into blocks of %d bits", text, bits)
		}
	}
	s, _ := Cut(netip.MustParsePrefix("10.1.2.3/8"), 20)
	for _, a := range []string{"11.0.0.0", "::1"} {
		if block, ok := s.BlockOf(netip.MustParseAddr(a)); ok {
			t.Errorf("%s is in block %d of %s", a, block, s.Prefix())
		}
	}
}
