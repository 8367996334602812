package placement

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// withDisks is a node that carries virtual machines and has room for 100 GiB of private disks and 64 huge pages, most of them on its second memory node.
func withDisks() api.NodeRecord {
	node := withMachines()
	node.Capacity.DiskBytes = 100 * gib
	node.Capacity.NUMANodes = []api.NUMANode{
		{ID: 0, MemoryBytes: 2 * gib, HugePages: []api.HugePages{{PageBytes: 2 << 20, Bytes: 600 << 20}}},
		{ID: 1, MemoryBytes: 2 * gib, HugePages: []api.HugePages{{PageBytes: 2 << 20, Bytes: 1500 << 20}, {PageBytes: 1 << 30, Bytes: 2 * gib}}},
	}
	return node
}

func disks(size int, disk api.Bytes) api.Group {
	g := machines(size)
	g.Memory, g.Disk = 256<<20, disk
	return g
}

func hugePages(size int, memory, page api.Bytes) api.Group {
	g := machines(size)
	g.Memory, g.HugePages = memory, page
	return g
}

func TestDisksAndHugePagesAreRefusedByWhatTheNodesHave(t *testing.T) {
	for _, tt := range []struct {
		name  string
		held  []api.Group
		group api.Group
		want  Constraint
		never bool
		fits  int
		says  string
	}{
		{
			"a disk that is larger than the room of any node", nil, disks(1, 101*gib), ConstraintDisk, true, 0,
			"1 member with 1 core and 256MiB and a disk of 101GiB; more than any node of this site has: n1 has most, 100GiB of disk",
		},
		{
			"more disks than have room", nil, disks(3, 40*gib), ConstraintDisk, true, 2,
			"more than this site has: 2 members fit even if every node were up and empty (2 on n1)",
		},
		{
			"a disk beside those of others",
			[]api.Group{disks(2, 40*gib)},
			disks(1, 30*gib), ConstraintDisk, false, 0,
			"none fits now; n1 has 20GiB of 100GiB of disk free",
		},
		{
			"huge pages beside those of others",
			[]api.Group{hugePages(1, 1*gib, 2<<20)},
			hugePages(1, 1200<<20, 2<<20), ConstraintHugePages, false, 0,
			"1 member with 1 core and 1200MiB in huge pages of 2MiB; none fits now; n1 has 1076MiB of 2100MiB of huge pages of 2MiB free",
		},
		{
			"more huge pages of a size than any node has", nil, hugePages(1, 3*gib, 1*gib), ConstraintHugePages, true, 0,
			"more than any node of this site has: n1 has most, 2GiB of huge pages of 1GiB",
		},
	} {
		v := viewOf(t, withDisks())
		for _, g := range tt.held {
			place(t, v, "other", g)
		}
		_, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{tt.group}})
		if refusal == nil {
			t.Errorf("%s: it was placed", tt.name)
			continue
		}
		if refusal.Constraint != tt.want || refusal.Never != tt.never || refusal.Fits != tt.fits || !strings.Contains(refusal.Message, tt.says) {
			t.Errorf("%s: got %s, never %t, %d fit: %s", tt.name, refusal.Constraint, refusal.Never, refusal.Fits, refusal.Message)
		}
		if got := v.Sketch().Capacity(tt.group).Refuse(tt.group.Size); !tt.never && got.Constraint != tt.want || got.Never != tt.never {
			t.Errorf("%s: counted, it is %s, never %t", tt.name, got.Constraint, got.Never)
		}
	}
}

func TestHugePagesAreClaimedByMemoryNodeInWholePagesAndNotOfOrdinaryMemory(t *testing.T) {
	v := viewOf(t, withDisks())
	held := place(t, v, "c1", hugePages(1, 1*gib, 2<<20))
	want := []api.MemoryClaim{{NUMANode: 0, Bytes: 600 << 20, PageBytes: 2 << 20}, {NUMANode: 1, Bytes: 424 << 20, PageBytes: 2 << 20}}
	if diff := cmp.Diff(want, held[0].Memory); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if got := v.rows[0].freeMemory; got != 4*gib-held[0].ReserveBytes {
		t.Errorf("%d bytes of ordinary memory are free, want all but the machine's own %d", got, held[0].ReserveBytes)
	}
	usage, _ := v.Usage("n1")
	if got := usage.Besides[resource.HugePages2MiB]; got != 1076<<20 {
		t.Errorf("%d bytes of huge pages are free", got)
	}
	second := place(t, v, "c2", hugePages(1, 512<<20, 2<<20))
	if want := []api.MemoryClaim{{NUMANode: 1, Bytes: 512 << 20, PageBytes: 2 << 20}}; !cmp.Equal(second[0].Memory, want) {
		t.Errorf("where its own memory node has none left, a member got %v", second[0].Memory)
	}
}

func TestAMemberInHugePagesNeedsNoOrdinaryMemoryButItsMachines(t *testing.T) {
	v := viewOf(t, withDisks())
	place(t, v, "other", group("g", 1, 1, 3))
	if _, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{hugePages(1, 1200<<20, 2<<20)}}); refusal != nil {
		t.Error(refusal.Message)
	}
}

func TestGroupsPlacedTogetherCountEachOthersDisks(t *testing.T) {
	a, b := disks(1, 60*gib), disks(1, 50*gib)
	a.Name, b.Name = "a", "b"
	if _, refusal := Place(viewOf(t, withDisks()), Request{Cluster: "c1", Groups: []api.Group{a, b}}); refusal == nil {
		t.Error("110 GiB of disks were placed where 100 have room")
	}
}

func TestASketchCountsDisksThatArePlannedAndThatEnd(t *testing.T) {
	v := viewOf(t, withDisks())
	held := place(t, v, "other", disks(1, 80*gib))
	s := v.Sketch()
	small, large := disks(1, 15*gib), disks(1, 90*gib)
	fit, _, ok := s.Fit([]api.Group{small})
	if !ok {
		t.Fatal("15 GiB do not fit beside 80 of 100")
	}
	s.Take(fit.Shares)
	if _, _, ok := s.Fit([]api.Group{small}); ok {
		t.Error("a disk of 15 GiB fits twice into 20")
	}
	if _, _, ok := v.Sketch().Fit([]api.Group{small}); !ok {
		t.Error("what one sketch plans is taken from another")
	}
	limited := v.Sketch()
	limited.Limit(s)
	if _, _, ok := limited.Fit([]api.Group{small}); ok {
		t.Error("a sketch has more disk than the one that limits it")
	}
	share, _ := v.ShareOf(held[0].ID)
	s.Give([]Share{share})
	if _, _, ok := s.Fit([]api.Group{large}); ok {
		t.Error("90 GiB fit beside the 15 that are planned")
	}
	s.Give(fit.Shares)
	if _, _, ok := s.Fit([]api.Group{large}); !ok {
		t.Error("90 GiB do not fit where all was given back")
	}
	s.Give(fit.Shares)
	if got := s.view.availableBesides(0, freeNow)[resource.Disk]; got != 100*gib {
		t.Errorf("the node has %d bytes of disk, more than it offers", got)
	}
}

func TestANodeWithTooLittleDiskStillTakesMembersWithoutOne(t *testing.T) {
	v := viewOf(t, withDisks())
	place(t, v, "other", disks(1, 80*gib))
	shrunk := withDisks()
	shrunk.Capacity.DiskBytes = 10 * gib // an image needed the room
	v.SetNode(shrunk, Schedulable)
	if held := place(t, v, "c1", machines(1)); len(held) != 1 {
		t.Error("a member without a disk has no place")
	}
	if _, refusal := Place(v, Request{Cluster: "c2", Groups: []api.Group{disks(1, 1*gib)}}); refusal == nil || refusal.Constraint != ConstraintDisk {
		t.Errorf("a disk where there is less than none: %v", refusal)
	}
	if why, _ := v.Sketch().WhyNot("n1", disks(1, 1*gib)); !strings.Contains(why, "0 of disk free, 1GiB of disk needed") {
		t.Errorf("its reason: %s", why)
	}
	a := place(t, viewOf(t, withDisks()), "c3", disks(1, 1*gib))[0]
	a.Slots = []int{7}
	if err := v.Take(a); err == nil || !strings.Contains(err.Error(), "0 of disk free") {
		t.Errorf("taking a disk that is not there: %v", err)
	}
}
