package placement

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestEachPartitionKeyIsGivenOnce(t *testing.T) {
	pool := api.PKeyPool{First: 0x10, Last: 0x15}
	stored := []*api.Network{
		{UID: "a", Index: 1, Cell: "ib0", PKey: 0x10},
		{UID: "b", Index: 2, Cell: "ib1", PKey: 0x13},
		{UID: "c", Cell: "ib0", PKey: 0x14, Refused: "its prefix was taken by then"},
		{UID: "d", Index: 0x11}, // a port of a whole node is in partition 0x11
	}
	n := DefaultPool.Numbers(stored, nil, nil)
	for _, tt := range []struct {
		requested, want int
		problem         string
	}{
		{0, 0x12, ""},
		{0x10, 0, "partition key 0x0010 was given to another network by then"},
		{0x12, 0, "partition key 0x0012 was given to another network by then"},
		{0x11, 0, "partition key 0x0011 was given to another network by then"},
		{0x16, 0, "partition key 0x0016 is not in the site's pool (0x0010-0x0015)"},
		{0x14, 0x14, ""},
		{0, 0x15, ""},
		{0, 0, "all partition keys of the site's pool (0x0010-0x0015) are in use: delete a network, or a cluster, on InfiniBand"},
	} {
		got, err := n.PKey("new", pool, tt.requested, func(int) (bool, error) { return true, nil })
		if got != tt.want || (err == nil) != (tt.problem == "") || err != nil && err.Error() != tt.problem {
			t.Errorf("requested %#x: got %#x, %v; want %#x, %q", tt.requested, got, err, tt.want, tt.problem)
		}
	}
	for range 0x20 {
		made, err := n.Network(api.Network{UID: "later"}, 1)
		if err != nil || pool.Has(made.Index) {
			t.Fatalf("network index %#x is also a partition key in use: %v", made.Index, err)
		}
		if made.Index > pool.Last {
			break
		}
	}
}

func TestAKeyThatDoesNotFitStaysFree(t *testing.T) {
	n, pool := DefaultPool.Numbers(nil, nil, nil), api.PKeyPool{First: 0x10, Last: 0x12}
	all := func(int) (bool, error) { return true, nil }
	if got, err := n.PKey("a", pool, 0, func(pkey int) (bool, error) { return pkey > 0x10, nil }); got != 0x11 || err != nil {
		t.Errorf("the lowest key that fits: got %#x, %v", got, err)
	}
	later := errors.New("it is not known")
	if got, err := n.PKey("b", pool, 0, func(int) (bool, error) { return false, later }); got != 0 || !errors.Is(err, later) {
		t.Errorf("a key of which it is not known: got %#x, %v", got, err)
	}
	if got, err := n.PKey("c", pool, 0x10, all); got != 0x10 || err != nil {
		t.Errorf("a key that did not fit another network: got %#x, %v", got, err)
	}
}

func TestAGUIDIsLocallyAdministeredAndNoGroup(t *testing.T) {
	guid := GUID(0x1234, 0xfe)
	if guid != "0e6d0000123400fe" || len(guid) != 16 || strings.ToLower(guid) != guid {
		t.Errorf("the GUID of host 0xfe of network 0x1234 is %s", guid)
	}
}
