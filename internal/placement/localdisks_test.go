package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// equipped are disks of a machine: two on NVMe, one SATA SSD, one hard disk, and a USB stick.
func equipped() []api.Disk {
	return []api.Disk{
		{Name: "nvme0n1", SizeBytes: 1000e9, Transport: "nvme"},
		{Name: "nvme1n1", SizeBytes: 500e9, Transport: "nvme"},
		{Name: "sda", SizeBytes: 500e9, Transport: "sata"},
		{Name: "sdb", SizeBytes: 8000e9, Transport: "sata", Rotational: true},
		{Name: "sdc", SizeBytes: 9000e9, Transport: "usb"},
	}
}

func TestAMachineHasTheDisksThatAreAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		want  []api.DiskRequest
		lacks api.DiskRequest
	}{
		"nothing":                               {nil, ""},
		"of any kind":                           {[]api.DiskRequest{"4:500GB"}, ""},
		"more than there are, USB left out":     {[]api.DiskRequest{"5:500GB"}, "5:500GB"},
		"on NVMe":                               {[]api.DiskRequest{"2:500GB:nvme"}, ""},
		"on NVMe, of a size that one has":       {[]api.DiskRequest{"2:501GB:nvme"}, "2:501GB:nvme"},
		"without moving parts, NVMe among them": {[]api.DiskRequest{"3:500GB:ssd"}, ""},
		"hard disks":                            {[]api.DiskRequest{"1:8TB:hdd"}, ""},
		"too many hard disks":                   {[]api.DiskRequest{"2:1GB:hdd"}, "2:1GB:hdd"},
		"two requests, of which one gives way":  {[]api.DiskRequest{"2:500GB:ssd", "1:1TB:nvme"}, ""},
		"two requests that want the same disk":  {[]api.DiskRequest{"1:1TB:ssd", "1:1TB:nvme"}, "1:1TB:nvme"},
		"all of them, by requests in bad order": {[]api.DiskRequest{"1:1GB", "1:1GB:ssd", "1:500GB:nvme", "1:1TB:nvme"}, ""},
	} {
		if got := lackingDisks(localDisks(api.NodeRecord{Disks: equipped()}), tc.want); got != tc.lacks {
			t.Errorf("%s: it lacks %q, want %q", name, got, tc.lacks)
		}
	}
}

func TestAGroupGetsMachinesWithItsDisks(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 8, 64), Warm)
	with := machineNode("n2", 8, 64)
	with.Disks = equipped()
	v.SetNode(with, Asleep)
	g := metal("m", 1, 4, 1)
	g.LocalDisks = []api.DiskRequest{"1:500GB:nvme"}
	const want = "it has no disks, which are too few for the request 1:500GB:nvme"
	if fits := v.Sketch().Machines(g); len(fits) != 2 || !fits[0].Fits || fits[0].Node != "n2" || fits[1].Fits || fits[1].Reason != want {
		t.Errorf("machines %+v, want n2, and %q of n1", fits, want)
	}
	if why, _ := v.Sketch().WhyNot("n1", g); !strings.Contains(why, want) {
		t.Errorf("n1: %s", why)
	}
	if got := place(t, v, "c", g); got[0].Node != "n2" {
		t.Errorf("it got %s, which has no disk", got[0].Node)
	}
}

func TestWhatDisksAreMissingIsTold(t *testing.T) {
	v := NewView()
	with := machineNode("n1", 8, 64)
	with.Disks = equipped()[:2]
	v.SetNode(with, Asleep)
	g := metal("m", 1, 4, 1)
	g.LocalDisks = []api.DiskRequest{"2:1TB:nvme"}
	_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{g}})
	if refusal == nil || refusal.Constraint != ConstraintLocalDisks || !refusal.Never || !strings.Contains(refusal.Message, "no machine has the disks 2:1TB:nvme (n1: it has nvme0n1 (1000 GB nvme), nvme1n1 (500 GB nvme), which are too few for the request 2:1TB:nvme") {
		t.Errorf("refused %+v", refusal)
	}
}
