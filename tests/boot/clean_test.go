package boot

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// secret is what a tenant left, in each sector of its disks.
const secret = "what the tenant must not leave behind"

// cleanDeadline is how long a cleaning may take here, with the boot before it.
const cleanDeadline = 2 * bootDeadline

// A tenant has filled both disks of a machine, one NVMe and one virtio, with partition tables at both ends, and left things in the firmware's variables.
// A dry run leaves all of it, which shows that the search finds it. After a cleaning nothing of it is found from outside, in the files that are the
// disks.
func TestACleanedMachineHasNothingOfItsTenant(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{{Name: "c1", Firmware: api.FirmwareUEFI, DiskBytes: []int64{192 << 20, 96 << 20}, NVMe: true, TPM: true}})
	s.enroll("c1", api.PowerRedfish)
	s.run("node", "inspect", "c1", "--wait")
	s.waitFor("c1", api.MachineOff, 5*time.Minute)
	disks := []string{s.disk("c1", 0), s.disk("c1", 1)}
	for _, disk := range disks {
		fill(t, disk)
	}
	s.plantVariables("c1")
	s.refused("nothing was erased", "node", "clean", "c1")
	s.refused("name", "node", "clean")

	before := sums(t, disks)
	out := s.run("node", "clean", "c1", "--dry-run", "--wait", "--timeout", cleanDeadline.String())
	t.Logf("the dry run says:\n%s", out)
	s.waitFor("c1", api.MachineOff, 5*time.Minute)
	if after := sums(t, disks); after != before {
		t.Error("a dry run has changed a disk")
	}
	for _, disk := range disks {
		if n := leftOn(t, disk); n < 1000 {
			t.Errorf("only %d traces of the tenant are found on %s, which holds them: the search is no proof", n, filepath.Base(disk))
		}
	}
	if left := s.tenantVariables("c1"); len(left) != 3 {
		t.Errorf("after a dry run the tenant's variables are %q, want all three", left)
	}
	if r := s.record("c1"); r.Clean != nil || r.Cleaning == nil || !r.Cleaning.DryRun || r.Quarantine != nil {
		t.Errorf("after a dry run: clean %+v, cleaning %+v, quarantine %+v", r.Clean, r.Cleaning, r.Quarantine)
	}

	tenant := s.record("c1").Boot.Generation
	out = s.run("node", "clean", "c1", "--yes", "--wait", "--timeout", cleanDeadline.String())
	t.Logf("the cleaning says:\n%s", out)
	s.waitFor("c1", api.MachineOff, 5*time.Minute)
	s.wantPower("c1", api.PowerOff)
	for _, disk := range disks {
		if n := leftOn(t, disk); n != 0 {
			t.Errorf("%d traces of the tenant are left on %s", n, filepath.Base(disk))
		}
	}
	if left := s.tenantVariables("c1"); len(left) != 0 {
		t.Errorf("of the tenant's variables, %q are left", left)
	}
	r := s.record("c1")
	if r.Clean == nil || r.Clean.Generation <= tenant || r.Clean.Generation != r.Boot.Generation || r.Quarantine != nil {
		t.Fatalf("after a cleaning: clean %+v, quarantine %+v; the boot before was %d", r.Clean, r.Quarantine, tenant)
	}
	for _, step := range r.Clean.Steps {
		if step.State == api.CleanDone && step.Verified == "" || step.Kind == api.CleanDisk && step.SizeBytes > 0 && step.State != api.CleanDone {
			t.Errorf("step %+v", step)
		}
	}
	if shown := s.run("node", "show", "c1"); !strings.Contains(shown, "clean, ") || !strings.Contains(shown, "nvme0n1") {
		t.Errorf("node show does not show the cleaning:\n%s", shown)
	}
	if i := slices.IndexFunc(r.Clean.Steps, func(s api.CleanStep) bool { return s.Kind == api.CleanTPM }); i < 0 || r.Clean.Steps[i].State != api.CleanDone {
		t.Errorf("the TPM is not cleared: %+v", r.Clean.Steps)
	}
	// It boots over the network still, with the boot order that the cleaning wrote.
	s.run("node", "inspect", "c1", "--wait")
}

// A storage controller that no driver serves may have disks that nobody sees, whatever becomes of the others. The machine is quarantined: nobody gets it until an operator releases it.
func TestAMachineThatCannotBeCleanedIsQuarantined(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{{Name: "c2", Firmware: api.FirmwareBIOS, DiskBytes: []int64{64 << 20}, SATA: true, Undriven: true}})
	s.enroll("c2", api.PowerIPMI)
	fill(t, s.disk("c2", 0))
	s.refused("no driver serves this storage controller", "node", "clean", "c2", "--yes", "--wait", "--timeout", cleanDeadline.String())
	r := s.record("c2")
	if r.Phase != api.MachineFailed || r.Clean != nil || r.Quarantine == nil || r.Quarantine.By != "" || !strings.Contains(r.Message, "1022:2020") {
		t.Fatalf("phase %s, message %q, clean %+v, quarantine %+v", r.Phase, r.Message, r.Clean, r.Quarantine)
	}
	// What can be cleaned is: the SATA disk has answered what it can do, and has nothing left.
	i := slices.IndexFunc(r.Cleaning.Steps, func(s api.CleanStep) bool { return s.Target == "sda" })
	if i < 0 || r.Cleaning.Steps[i].State != api.CleanDone || len(r.Cleaning.Steps[i].Tried) > 0 {
		t.Errorf("the SATA disk: %+v", r.Cleaning.Steps)
	}
	if n := leftOn(t, s.disk("c2", 0)); n != 0 {
		t.Errorf("%d traces of the tenant are left on the SATA disk", n)
	}
	s.refused("in quarantine", "node", "power", "on", "c2", "--env", "debian-mpi")
	s.refused("in quarantine", "node", "power", "cycle", "c2", "--env", "debian-mpi", "--force")
	if out := s.run("node", "release", "c2"); !strings.Contains(out, "node c2 is released") {
		t.Errorf("the release says %q", out)
	}
	s.refused("not in quarantine", "node", "release", "c2")
	s.run("node", "power", "off", "c2", "--wait")
	s.run("node", "quarantine", "c2", "--reason", "its fan is loud")
	s.refused("its fan is loud", "node", "power", "on", "c2", "--env", "debian-mpi")
	if r := s.record("c2"); r.Phase != api.MachineOff || r.Quarantine == nil || r.Quarantine.By == "" {
		t.Errorf("phase %s, quarantine %+v", r.Phase, r.Quarantine)
	}
}

// The server is killed in the middle of a cleaning, which goes on, in the same boot. Then the machine loses its power: it is cleaned again, in another
// boot, and only that one is the proof.
func TestACleaningOutlivesTheServerAndALossOfPower(t *testing.T) {
	const size, rate = 192 << 20, 1 << 20 // so that it is read back for three minutes
	s := newSite(t, []vdc.MachineConfig{{Name: "c3", Firmware: api.FirmwareBIOS, DiskBytes: []int64{size}, DiskRate: rate}})
	s.enroll("c3", api.PowerRedfish)
	fill(t, s.disk("c3", 0))
	s.run("node", "clean", "c3", "--yes")
	readsBack := func(r api.MachineRecord) bool { return r.Cleaning != nil && r.Cleaning.Bytes > size }
	first := s.waitUntil("c3", "reading its disk back", cleanDeadline, readsBack).Machine.Record
	s.kill()
	s.start()
	again := s.waitUntil("c3", "further than before", cleanDeadline, func(r api.MachineRecord) bool {
		return r.Cleaning != nil && r.Cleaning.Bytes > first.Cleaning.Bytes
	}).Machine.Record
	if again.Attempt != 1 || again.Boot.Generation != first.Boot.Generation || again.Clean != nil {
		t.Fatalf("attempt %d of generation %d after %d, clean %+v: %s", again.Attempt, again.Boot.Generation, first.Boot.Generation, again.Clean, again.Message)
	}
	must(t, s.dc.CutPower("c3"))
	second := s.waitUntil("c3", "booting again", cleanDeadline, func(r api.MachineRecord) bool { return r.Attempt == 2 }).Machine.Record
	if second.Phase != api.MachineCleaning || second.Boot.Generation <= first.Boot.Generation || second.Clean != nil {
		t.Errorf("phase %s, generation %d after %d, clean %+v", second.Phase, second.Boot.Generation, first.Boot.Generation, second.Clean)
	}
	r := s.waitFor("c3", api.MachineOff, cleanDeadline).Machine.Record
	if r.Clean == nil || r.Clean.Generation != second.Boot.Generation || r.Quarantine != nil {
		t.Errorf("clean %+v, quarantine %+v", r.Clean, r.Quarantine)
	}
	if n := leftOn(t, s.disk("c3", 0)); n != 0 {
		t.Errorf("%d traces of the tenant are left", n)
	}
}

// disk is the file that is a disk of a machine.
func (s *site) disk(machine string, number int) string {
	return filepath.Join(s.dc.Folder(), "disks", fmt.Sprintf("%s-%d.raw", machine, number))
}

// fill writes the secret into each sector of a disk, and partition tables at both ends.
func fill(t *testing.T, disk string) {
	t.Helper()
	info, err := os.Stat(disk)
	must(t, err)
	const sector = 512
	chunk := bytes.Repeat(append([]byte(secret), make([]byte, sector-len(secret))...), 2048)
	file, err := os.OpenFile(disk, os.O_WRONLY, 0)
	must(t, err)
	for at := int64(0); at < info.Size(); at += int64(len(chunk)) {
		_, err := file.WriteAt(chunk, at)
		must(t, err)
	}
	must(t, file.Close())
	table := exec.Command("sfdisk", "--no-reread", "--wipe", "never", disk)
	table.Stdin = strings.NewReader("label: gpt\nsize=16MiB, name=\"tenant\"\n")
	if out, err := table.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v: %s", err, out)
	}
	end := make([]byte, sector)
	if _, err := readAt(disk, end, info.Size()-sector); err != nil || !bytes.HasPrefix(end, []byte(partitionTable)) {
		t.Fatalf("no partition table at the end of %s: %q, %v", disk, end[:8], err)
	}
}

// partitionTable begins a GUID partition table, and its copy at the end of a disk (UEFI 2.10, section 5.3.2).
const partitionTable = "EFI PART"

func readAt(path string, data []byte, at int64) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	n, err := file.ReadAt(data, at)
	return n, errors.Join(err, file.Close())
}

// leftOn counts what is found of the tenant on a disk, all over it.
func leftOn(t *testing.T, disk string) int {
	t.Helper()
	content, err := os.ReadFile(disk)
	must(t, err)
	return bytes.Count(content, []byte(secret)) + bytes.Count(content, []byte(partitionTable))
}

// sums tells whether disks have changed.
func sums(t *testing.T, disks []string) string {
	t.Helper()
	hash := sha256.New()
	for _, disk := range disks {
		file, err := os.Open(disk)
		must(t, err)
		_, err = io.Copy(hash, file)
		must(t, errors.Join(err, file.Close()))
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

// tenantGUIDs are of variables that the test leaves in the firmware: of systemd's boot loader, and one that nobody knows. The name of a third one is a
// boot entry of the tenant's.
const (
	loaderGUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	tenantGUID = "5d3b1f5a-0f0c-4a6e-9d57-0123456789ab"
	globalGUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	bootName   = "Boot0077"
)

// variable is one as virt-fw-vars reads and writes it.
type variable struct {
	Name string `json:"name"`
	GUID string `json:"guid"`
	Attr int    `json:"attr"`
	Data string `json:"data"`
}

// variablesTool is virt-fw-vars, of the virtual data centre's Python environment.
func (s *site) variablesTool(args ...string) {
	s.t.Helper()
	tools, err := filepath.Glob(filepath.Join(vdc.CacheDir, "bmc-*", "bin", "virt-fw-vars"))
	must(s.t, err)
	if len(tools) == 0 {
		s.t.Fatal("virt-fw-vars is missing")
	}
	if out, err := exec.Command(tools[0], args...).CombinedOutput(); err != nil {
		s.t.Fatalf("virt-fw-vars %q: %v: %s", args, err, out)
	}
}

func (s *site) variablesFile(machine string) string {
	return filepath.Join(s.dc.Folder(), "disks", machine+".vars")
}

// plantVariables leaves in a machine that is off what a tenant's system may leave in its firmware.
func (s *site) plantVariables(machine string) {
	s.t.Helper()
	// A load option of a file on a disk: attributes, the length of its paths, "T", and nodes of a hard drive and of the end.
	const drive = "04012a00" + "01000000" + "0008000000000000" + "0080000000000000" + "00112233445566778899aabbccddeeff" + "0202"
	const option = "01000000" + "2e00" + "54000000" + drive + "7fff0400"
	planted := struct {
		Version   int        `json:"version"`
		Variables []variable `json:"variables"`
	}{2, []variable{
		{"LoaderEntryDefault", loaderGUID, 7, fmt.Sprintf("%x", secret)},
		{"TenantNote", tenantGUID, 7, fmt.Sprintf("%x", secret)},
		{bootName, globalGUID, 7, option},
	}}
	text, err := json.Marshal(planted)
	must(s.t, err)
	file := filepath.Join(s.dir, "planted.json")
	must(s.t, os.WriteFile(file, text, 0o600))
	s.variablesTool("--inplace", s.variablesFile(machine), "--set-json", file)
	if left := s.tenantVariables(machine); len(left) != 3 {
		s.t.Fatalf("the variables %q are there, want three", left)
	}
}

// tenantVariables are the names of those variables of a machine that is off that a tenant left.
func (s *site) tenantVariables(machine string) (names []string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "variables.json")
	s.variablesTool("--input", s.variablesFile(machine), "--output-json", file)
	text, err := os.ReadFile(file)
	must(s.t, err)
	var read struct {
		Variables []variable `json:"variables"`
	}
	must(s.t, json.Unmarshal(text, &read))
	for _, v := range read.Variables {
		if v.GUID == loaderGUID || v.GUID == tenantGUID || v.Name == bootName {
			names = append(names, v.Name)
		}
	}
	return names
}
