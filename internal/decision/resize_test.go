package decision

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// size is one of so many slots, from slot 0 on.
func size(number int64, slots int, memory int64) api.Size {
	s := api.Size{Number: number, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: memory}}}
	for n := range slots {
		s.Slots, s.CPUs = append(s.Slots, n), append(s.CPUs, n)
	}
	return s
}

// sizedCluster is a running cluster whose member c-1 has a size.
func sizedCluster(s api.Size) Cluster {
	c := running()
	for i := range c.Chunks {
		for j := range c.Chunks[i].Assignments {
			if a := &c.Chunks[i].Assignments[j]; a.ID == "u1.c-1.1" {
				*a = a.Sized(s)
			}
		}
	}
	return c
}

func member(t *testing.T, c Cluster, id string) *api.Assignment {
	t.Helper()
	for _, a := range c.Assignments() {
		if a.ID == id {
			return a.Assignment
		}
	}
	t.Fatalf("assignment %s is gone", id)
	return nil
}

func TestAMemberThatGrowsHoldsItsNewSizeBeforeItHasIt(t *testing.T) {
	t.Parallel()
	const id = "u1.c-1.1"
	c := sizedCluster(size(0, 1, 500))
	to := size(1, 3, 900)
	change := apply(t, c, time.Hour, lifecycle.Resize{Assignment: id, Hold: to, To: to})
	if diff := cmp.Diff([]string{"allocated on n1: 1 members, 1 cores, 500 bytes for 1h0m0s"}, spansOf(change)); diff != "" {
		t.Errorf("use that ends with the decision (-want +got):\n%s", diff)
	}
	c = then(c, change)
	a := member(t, c, id)
	if len(a.Slots) != 3 || a.MemoryBytes() != 900 || a.Resizing == nil || len(a.Has().Slots) != 1 || len(a.Wants().Slots) != 3 {
		t.Errorf("it holds %+v, resizing %+v", a.Held(), a.Resizing)
	}
	change = apply(t, c, 3*time.Hour, lifecycle.Resized{IDs: []string{id}})
	if got := spansOf(change); len(got) > 0 {
		t.Errorf("use that ends though it holds the same: %q", got)
	}
	c = then(c, change)
	if a := member(t, c, id); a.Resizing != nil || a.SizeNumber != 1 || len(a.Slots) != 3 {
		t.Errorf("once it has its new size, it is %+v", a)
	}
	if diff := cmp.Diff([]string{"allocated on n1: 1 members, 3 cores, 900 bytes for 4h0m0s"},
		spansOf(apply(t, c, 5*time.Hour, lifecycle.Release{IDs: []string{id}, Reason: "gone"}))); diff != "" {
		t.Errorf("use that ends with its release (-want +got):\n%s", diff)
	}
}

func TestAMemberThatShrinksHoldsItsFormerSizeUntilItHasItsNewOne(t *testing.T) {
	t.Parallel()
	const id = "u1.c-1.1"
	c := sizedCluster(size(0, 3, 900))
	change := apply(t, c, time.Hour, lifecycle.Resize{Assignment: id, Hold: size(0, 3, 900), To: size(1, 1, 500)})
	if got := spansOf(change); len(got) > 0 {
		t.Errorf("use that ends while it holds the same: %q", got)
	}
	c = then(c, change)
	if a := member(t, c, id); len(a.Slots) != 3 || a.MemoryBytes() != 900 {
		t.Errorf("it has given up a part before its node has: %+v", a.Held())
	}
	change = apply(t, c, 2*time.Hour, lifecycle.Resized{IDs: []string{id}})
	if diff := cmp.Diff([]string{"allocated on n1: 1 members, 3 cores, 900 bytes for 2h0m0s"}, spansOf(change)); diff != "" {
		t.Errorf("use that ends once it has its new size (-want +got):\n%s", diff)
	}
	c = then(c, change)
	if a := member(t, c, id); len(a.Slots) != 1 || a.MemoryBytes() != 500 || a.Resizing != nil {
		t.Errorf("once it has its new size, it holds %+v", a.Held())
	}
}

func TestAResizeThatWouldLoseWhatAMachineUsesIsRefused(t *testing.T) {
	t.Parallel()
	const id = "u1.c-1.1"
	c := sizedCluster(size(0, 2, 600))
	pending := then(c, apply(t, c, time.Hour, lifecycle.Resize{Assignment: id, Hold: size(0, 2, 600), To: size(1, 1, 500)}))
	other := size(1, 2, 600)
	other.Slots = []int{2, 3}
	for _, tt := range []struct {
		name string
		c    Cluster
		op   lifecycle.ClusterOperation
		want string
	}{
		{"a shrink that frees at once", c, lifecycle.Resize{Assignment: id, Hold: size(1, 1, 500), To: size(1, 1, 500)}, "would give up a part of its former size"},
		{"a shrink that frees memory at once", c, lifecycle.Resize{Assignment: id, Hold: size(1, 2, 500), To: size(1, 2, 500)}, "would give up a part of its former size"},
		{"other slots that give up those in use", c, lifecycle.Resize{Assignment: id, Hold: other, To: other}, "would give up a part of its former size"},
		{"a growth that is not claimed", c, lifecycle.Resize{Assignment: id, Hold: size(0, 2, 600), To: size(1, 3, 600)}, "would not hold all of its new size"},
		{"a number that was given before", pending, lifecycle.Resize{Assignment: id, Hold: size(0, 2, 600), To: size(1, 2, 600)}, "does not follow size 1"},
		{"a spare", c, lifecycle.Resize{Assignment: spare(2).ID, Hold: size(0, 2, 600), To: size(1, 2, 600)}, "is no member that can have another size"},
		{"the end of a resize that nobody decided", c, lifecycle.Resized{IDs: []string{id}}, "is not being resized"},
	} {
		_, err := Apply(tt.c, []lifecycle.ClusterOperation{tt.op}, t0.Add(2*time.Hour))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	next := successor(pending, id)
	pending.Record.Phase = api.ClusterReady
	_, err := Apply(pending, []lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{next}}}, t0.Add(2*time.Hour))
	if err == nil || !strings.Contains(err.Error(), "which is being resized") {
		t.Errorf("a successor of a member that is being resized: %v", err)
	}
	saving := then(pending, apply(t, pending, 2*time.Hour, lifecycle.Shelve{IDs: []string{id}}))
	if a := member(t, saving, id); a.Resizing != nil || len(a.Slots) > 0 {
		t.Errorf("a member that was saved all the same holds %+v, resizing %+v", a.Held(), a.Resizing)
	}
}
