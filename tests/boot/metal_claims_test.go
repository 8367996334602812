package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// A cluster that asks for certain disks gets the machine that has them, whichever is free besides. A machine whose firmware is not on the site's list is
// given to nobody, until an inspection finds it on the list.
func TestMachinesAreHadForTheirDisksAndNotWithOtherFirmware(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB},
		{Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, DiskBytes: []int64{96 << 20, 64 << 20}, NVMe: true},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	metal := []string{"cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi"}
	s.refused("too few for the request 1:1TB:hdd", append(metal, "--local-disk", "1:60MB:nvme", "--local-disk", "1:1TB:hdd")...)
	s.refused("too few for the request 2:60MB:nvme", append(metal, "--local-disk", "2:60MB:nvme")...)

	// What is looked at without a boot is what would be given.
	file := filepath.Join(t.TempDir(), "firmware.yaml")
	list := func(text string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(text), 0o600))
		s.stop()
		s.args = []string{"--firmware-list", file}
		s.start()
	}
	list("machines:\n- product: none\n")
	s.run("node", "inspect", "b2")
	quarantined := s.waitUntil("b2", "in quarantine for its firmware", inspectDeadline, func(r api.MachineRecord) bool { return r.Quarantine != nil })
	if q := quarantined.Machine.Record.Quarantine; !q.Firmware || !strings.Contains(q.Reason, "is not on the firmware list") {
		t.Errorf("it is in quarantine because %q, for its firmware: %v", q.Reason, q.Firmware)
	}
	s.waitFor("b2", api.MachineOff, 5*time.Minute)
	s.refused("b2 is", append(metal, "--local-disk", "1:60MB:nvme")...)
	if said := s.run("node", "show", "b2"); !strings.Contains(said, "is not on the firmware list") {
		t.Errorf("node show does not say why nobody gets the machine:\n%s", said)
	}

	list("machines:\n- vendor: '*'\n")
	s.run("node", "inspect", "b2")
	s.waitUntil("b2", "free of its quarantine, and off", inspectDeadline, func(r api.MachineRecord) bool { return r.Quarantine == nil && r.Phase == api.MachineOff })
	s.run(append(metal, "--local-disk", "1:60MB:nvme")...)
	if node := s.cluster("m1").Status.Members[0].Node; node != "b2" {
		t.Errorf("the cluster that asked for an NVMe disk has machine %s, want b2", node)
	}
	if disk := strings.TrimSpace(s.run("cluster", "ssh", "m1", "--root", "--", "cat /sys/block/nvme0n1/size")); disk == "" {
		t.Error("its member has no NVMe disk")
	}
	s.run("cluster", "delete", "m1", "--yes")
	s.waitUntil("b2", "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
}
