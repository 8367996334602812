package opensm

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/netdiscover"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func nodeInfo(node, port uint64) smp.Answer {
	data := make([]byte, 64)
	binary.BigEndian.PutUint64(data[12:], node)
	binary.BigEndian.PutUint64(data[20:], port)
	return smp.Answer{Data: data}
}

func tableOf(keys ...uint16) smp.Answer {
	data := make([]byte, 64)
	for i, key := range keys {
		binary.BigEndian.PutUint16(data[2*i:], key)
	}
	return smp.Answer{Data: data}
}

func TestAPlaceIsReadFromBothEndsAndByItsName(t *testing.T) {
	const host, leaf = 0x11, 0x22
	errSilent := errors.New("no answer")
	for _, tt := range []struct {
		name            string
		leaf, host      smp.Answer
		adapter, before smp.Answer
		want            string // of the problem; "": none
	}{
		{"both tables have the key", nodeInfo(leaf, leaf), nodeInfo(1, host), tableOf(0xffff, 0x8005), tableOf(0xffff, 0x8005), ""},
		{"another adapter has the LID", nodeInfo(leaf, leaf), nodeInfo(1, 0x99), tableOf(0x8005), tableOf(0x8005), "port 0000000000000099 has its LID"},
		{"another switch has the switch's LID", nodeInfo(0x99, 0x99), nodeInfo(1, host), tableOf(0x8005), tableOf(0x8005), "node 0000000000000099 has the switch's LID"},
		{"the switch port lacks the key", nodeInfo(leaf, leaf), nodeInfo(1, host), tableOf(0xffff, 0x8005), tableOf(0xffff), "in its adapter's table, and not in that of port 3 of switch l1"},
		{"the adapter lacks the key", nodeInfo(leaf, leaf), nodeInfo(1, host), tableOf(0xffff), tableOf(0xffff, 0x8005), "and not in its adapter's"},
		{"the adapter does not answer", nodeInfo(leaf, leaf), smp.Answer{Err: errSilent}, tableOf(), tableOf(), "no answer"},
		{"the switch's table can't be read", nodeInfo(leaf, leaf), nodeInfo(1, host), tableOf(), smp.Answer{Err: errSilent}, "the table of port 3 of switch l1, before it: no answer"},
		{"only the marker and the default partition differ", nodeInfo(leaf, leaf), nodeInfo(1, host), tableOf(0xffff, 0xfff0), tableOf(), ""},
	} {
		p := &place{at: "x", port: netdiscover.Port{GUID: host, LID: 7, Switch: netdiscover.SwitchPort{GUID: leaf, LID: 8, Port: 3, Name: "l1"}}, room: 32, switchRoom: 32}
		p.take(tt.leaf, []smp.Answer{tt.host, tt.adapter, tt.before})
		if (p.problem == "") != (tt.want == "") || !strings.Contains(p.problem, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, p.problem, tt.want)
		}
		f := fabric{places: map[string]*place{"x": p}}
		seen := f.observation(lifecycle.Epoch{Term: 1}, nil)
		if _, unknown := seen.Unknown["x"]; unknown != (tt.want != "") || unknown && len(seen.Networks) > 0 {
			t.Errorf("%s: observed %+v", tt.name, seen)
		}
	}
}

func TestAPlaceThatIsNotOnTheFabricIsUnknown(t *testing.T) {
	f := fabric{desired: map[string]map[int]bool{"wanted": {5: false}}}
	seen := f.observation(lifecycle.Epoch{Term: 1}, []string{"earlier"})
	for _, at := range []string{"wanted", "earlier"} {
		if seen.Unknown[at] == "" || seen.Clean(lifecycle.Epoch{Term: 1}, 5, at) == nil {
			t.Errorf("%s is taken for clean: %+v", at, seen)
		}
	}
}

func TestEachContentHasAMarkerThatNoOtherMayHave(t *testing.T) {
	var r record
	var err error
	for range partitions.LastMarker - partitions.FirstMarker + 1 {
		before := r.Pending
		if r, err = r.next(0); err != nil || slices.Contains(before, r.Marker) || !partitions.IsMarker(r.Marker) {
			t.Fatalf("marker %#x after %#x, %v", r.Marker, before, err)
		}
	}
	if _, err := r.next(0); err == nil || !strings.Contains(err.Error(), "carried out none of the last 14 changes") {
		t.Errorf("when all markers are under way: %v", err)
	}
	if r, err = r.next(partitions.LastMarker); err != nil || r.Marker != partitions.FirstMarker || len(r.Pending) != 2 {
		t.Errorf("when the newest was seen: %+v, %v", r, err)
	}
}

func TestAnOpenSMIsKnownByTheFileThatItReads(t *testing.T) {
	for _, tt := range []struct {
		args   string
		config string
		want   string
	}{
		{"-g 0x1 -P /a/p.conf", "", "/a/p.conf"},
		{"-P/a/p.conf", "", "/a/p.conf"},
		{"--Pconfig=/a/p.conf -F /c", "partition_config_file /b\n", "/a/p.conf"},
		{"-F /c", "# x\npartition_config_file /b\n", "/b"},
		{"", "partition_config_file (null)\n", defaultPartitions},
		{"-B", "", defaultPartitions},
	} {
		if got := partitionsOf(strings.Fields(tt.args), func(string) (string, error) { return tt.config, nil }); got != tt.want {
			t.Errorf("opensm %s reads %s, want %s", tt.args, got, tt.want)
		}
	}
}
