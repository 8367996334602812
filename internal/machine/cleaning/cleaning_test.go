package cleaning

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// memoryDisk is a disk in memory, with faults.
type memoryDisk struct {
	content []byte
	// methods is what each method does to the content; nil: nothing, and says that it succeeded.
	methods map[plan.Method]func(content []byte) error
	erased  []plan.Method
	opened  int
	unread  int64 // reads from there on fail; 0: none do
	deaf    bool  // it takes what is written, and keeps what it had
}

func (d *memoryDisk) ReadAt(p []byte, at int64) (int, error) {
	if d.unread > 0 && at+int64(len(p)) > d.unread {
		return 0, errors.New("input/output error")
	}
	return copy(p, d.content[at:]), nil
}

func (d *memoryDisk) WriteAt(p []byte, at int64) (int, error) {
	if d.deaf {
		return len(p), nil
	}
	return copy(d.content[at:], p), nil
}
func (d *memoryDisk) Sync() error  { return nil }
func (d *memoryDisk) Close() error { return nil }

func (d *memoryDisk) Erase(_ context.Context, m plan.Method, told Told) error {
	d.erased = append(d.erased, m)
	told.Bytes(int64(len(d.content)))
	if do := d.methods[m]; do != nil {
		return do(d.content)
	}
	return nil
}

// What methods of disks do.
func zero(content []byte) error { clear(content); return nil }

func noise(content []byte) error {
	newPattern().fill(content, 0)
	return nil
}
func refuse([]byte) error { return errors.New("not supported") }

func zeroBut(from, to int) func([]byte) error {
	return func(content []byte) error {
		clear(content[:from])
		clear(content[to:])
		return nil
	}
}

// diskBytes is the size of a small disk, which is read back as a whole; largeBytes of one that is sampled.
const (
	diskBytes  = 4 << 20
	largeBytes = 160 << 20
)

// machineOf is a machine with these disks, and neither UEFI nor TPM.
func machineOf(t *testing.T, disks map[string]*memoryDisk, seen ...plan.Disk) *Machine {
	t.Helper()
	return &Machine{
		Look: func(context.Context) ([]plan.Disk, []plan.Controller) { return seen, nil },
		Open: func(d plan.Disk) (Device, error) {
			disks[d.Name].opened++
			return disks[d.Name], nil
		},
		Firmware: filepath.Join(t.TempDir(), "none"), TPM: func() (io.ReadWriteCloser, error) { return nil, nil },
	}
}

func clean(t *testing.T, m *Machine, order boot.CleanOrder) boot.CleanReport {
	t.Helper()
	p := NewProgress()
	m.Clean(t.Context(), order, p)
	report, ok := p.Report()
	if !ok || !report.Done {
		t.Fatalf("the report is %+v", report)
	}
	return report
}

func stepOf(t *testing.T, r boot.CleanReport, target string) api.CleanStep {
	t.Helper()
	i := slices.IndexFunc(r.Steps, func(s api.CleanStep) bool { return s.Target == target })
	if i < 0 {
		t.Fatalf("no step about %s in %+v", target, r.Steps)
	}
	return r.Steps[i]
}

func filled(size int) []byte { return bytes.Repeat([]byte("tenant!!"), size/8) }

func TestADiskIsErasedByTheBestMethodAndReadBack(t *testing.T) {
	t.Parallel()
	nvme := plan.Disk{Name: "nvme0n1", Bytes: diskBytes, BlockBytes: 512, NVMe: &plan.NVMe{Controller: "nvme0", SanitizeCrypto: true, Format: true}}
	d := &memoryDisk{content: filled(diskBytes), methods: map[plan.Method]func([]byte) error{plan.SanitizeCrypto: noise}}
	r := clean(t, machineOf(t, map[string]*memoryDisk{"nvme0n1": d}, nvme), boot.CleanOrder{})
	s := stepOf(t, r, "nvme0n1")
	if s.State != api.CleanDone || s.Method != string(plan.SanitizeCrypto) || s.Verified == "" || s.Bytes != s.TotalBytes || len(d.erased) != 1 {
		t.Errorf("step %+v, erased by %q", s, d.erased)
	}
}

func TestWhenAMethodFailsTheNextIsTriedAndThatIsSaid(t *testing.T) {
	t.Parallel()
	nvme := plan.Disk{Name: "nvme0n1", Bytes: diskBytes, BlockBytes: 512, Discards: true, NVMe: &plan.NVMe{Controller: "nvme0", SanitizeCrypto: true, Format: true}}
	d := &memoryDisk{content: filled(diskBytes), methods: map[plan.Method]func([]byte) error{
		plan.SanitizeCrypto: refuse,
		plan.FormatErase:    nil, // it says that it did it, and did nothing
		plan.Discard:        zeroBut(1<<20, 2<<20),
		plan.ZeroOut:        zero,
	}}
	r := clean(t, machineOf(t, map[string]*memoryDisk{"nvme0n1": d}, nvme), boot.CleanOrder{})
	s := stepOf(t, r, "nvme0n1")
	if s.State != api.CleanDone || s.Method != string(plan.ZeroOut) || len(s.Tried) != 3 {
		t.Fatalf("step %+v", s)
	}
	for i, want := range []string{"not supported", "is still there", "not zeroes"} {
		if !strings.Contains(s.Tried[i], want) {
			t.Errorf("tried %q, want a reason with %q", s.Tried[i], want)
		}
	}
	if want := []plan.Method{plan.SanitizeCrypto, plan.FormatErase, plan.Discard, plan.ZeroOut}; !slices.Equal(d.erased, want) {
		t.Errorf("erased by %q, want %q", d.erased, want)
	}
}

// What a disk keeps at its very ends, or anywhere when it was only asked to discard, is found.
func TestADiskThatKeepsAPartIsNotClean(t *testing.T) {
	t.Parallel()
	for name, keeps := range map[string]struct {
		disk plan.Disk
		do   func([]byte) error
		all  plan.Method
	}{
		"the last sector, after zeroes":           {plan.Disk{}, zeroBut(largeBytes-512, largeBytes), plan.ZeroOut},
		"the first sector, after zeroes":          {plan.Disk{}, zeroBut(0, 512), plan.ZeroOut},
		"a tenth, after zeroes":                   {plan.Disk{}, zeroBut(largeBytes/2, largeBytes*6/10), plan.ZeroOut},
		"one sector somewhere, after a discard":   {plan.Disk{Discards: true}, zeroBut(largeBytes/3/512*512, largeBytes/3/512*512+512), plan.Discard},
		"the last sector, after an ATA erasure":   {plan.Disk{ATA: &plan.ATA{Security: true}}, zeroBut(largeBytes-512, largeBytes), plan.ATAErase},
		"everything, after an NVMe format":        {plan.Disk{NVMe: &plan.NVMe{Format: true}}, func([]byte) error { return nil }, plan.FormatErase},
		"the last sector, after an NVMe sanitize": {plan.Disk{NVMe: &plan.NVMe{SanitizeBlock: true}}, zeroBut(largeBytes-512, largeBytes), plan.SanitizeBlock},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := keeps.disk
			disk.Name, disk.Bytes, disk.BlockBytes = "sda", largeBytes, 512
			d := &memoryDisk{content: filled(largeBytes), methods: map[plan.Method]func([]byte) error{keeps.all: keeps.do, plan.ZeroOut: keeps.do, plan.WriteZeroes: refuse, plan.Discard: keeps.do}}
			if keeps.all != plan.ZeroOut {
				d.methods[plan.ZeroOut] = refuse
			}
			s := stepOf(t, clean(t, machineOf(t, map[string]*memoryDisk{"sda": d}, disk), boot.CleanOrder{}), "sda")
			if s.State != api.CleanFailed || s.Verified != "" || !strings.Contains(s.Message, "read back") {
				t.Errorf("step %+v", s)
			}
		})
	}
}

func TestADiskThatCannotBeReadBackIsNotClean(t *testing.T) {
	t.Parallel()
	d := &memoryDisk{content: filled(diskBytes), unread: diskBytes - 4096, methods: map[plan.Method]func([]byte) error{plan.ZeroOut: zero, plan.WriteZeroes: zero}}
	s := stepOf(t, clean(t, machineOf(t, map[string]*memoryDisk{"sda": d}, plan.Disk{Name: "sda", Bytes: diskBytes}), boot.CleanOrder{}), "sda")
	if s.State != api.CleanFailed || !strings.Contains(s.Message, "input/output error") {
		t.Errorf("step %+v", s)
	}
}

// The absence of a pattern proves nothing of a disk that did not take it.
func TestADiskThatTakesNothingIsNotClean(t *testing.T) {
	t.Parallel()
	nvme := plan.Disk{Name: "nvme0n1", Bytes: diskBytes, NVMe: &plan.NVMe{Controller: "nvme0", Format: true}}
	d := &memoryDisk{content: filled(diskBytes), deaf: true}
	s := stepOf(t, clean(t, machineOf(t, map[string]*memoryDisk{"nvme0n1": d}, nvme), boot.CleanOrder{}), "nvme0n1")
	if s.State != api.CleanFailed || !strings.Contains(s.Tried[0], "what was written is not read back") {
		t.Errorf("step %+v", s)
	}
}

func TestADryRunTouchesNothing(t *testing.T) {
	t.Parallel()
	d := &memoryDisk{content: filled(diskBytes)}
	m := machineOf(t, map[string]*memoryDisk{"sda": d}, plan.Disk{Name: "sda", Bytes: diskBytes, Discards: true}, plan.Disk{Name: "loop0", Virtual: true})
	m.Firmware = variablesOf(t, map[string]string{"BootNext-8be4df61-93ca-11d2-aa0d-00e098032b8c": "\x07\x00\x00\x00\x01\x00"})
	tpm := &fakeTPM{}
	m.TPM = func() (io.ReadWriteCloser, error) { return tpm, nil }
	r := clean(t, m, boot.CleanOrder{DryRun: true})
	if d.opened != 0 || len(d.erased) != 0 || !bytes.Equal(d.content, filled(diskBytes)) || tpm.commands != 0 || !r.DryRun {
		t.Errorf("the disk was opened %d times and erased by %q; the TPM got %d commands; dry: %v", d.opened, d.erased, tpm.commands, r.DryRun)
	}
	if _, err := os.Stat(filepath.Join(m.Firmware, "BootNext-8be4df61-93ca-11d2-aa0d-00e098032b8c")); err != nil {
		t.Error("a variable was deleted")
	}
	for _, target := range []string{"sda", "UEFI variables", "TPM"} {
		if s := stepOf(t, r, target); s.State != api.CleanPlanned || s.Method == "" {
			t.Errorf("step %+v", s)
		}
	}
	if s := stepOf(t, r, "sda"); s.Method != string(plan.Discard) || len(s.Fallbacks) != 2 {
		t.Errorf("step %+v", s)
	}
	if s := stepOf(t, r, "UEFI variables"); !strings.Contains(s.Message, "BootNext") {
		t.Errorf("step %+v", s)
	}
	if s := stepOf(t, r, "loop0"); s.State != api.CleanSkipped {
		t.Errorf("step %+v", s)
	}
}

func TestWhatCannotBeReachedIsNotClean(t *testing.T) {
	t.Parallel()
	m := machineOf(t, nil)
	m.Look = func(context.Context) ([]plan.Disk, []plan.Controller) {
		return []plan.Disk{{Name: "sda", Serial: "S1", Virtual: true}}, []plan.Controller{{Name: "0000:03:00.0", Problem: "no driver serves 1000:0097"}}
	}
	m.Expected = []api.Disk{{Name: "sda", Serial: "S1"}, {Name: "sdb", Serial: "S2"}, {Name: "vda"}}
	r := clean(t, m, boot.CleanOrder{WasOff: true})
	if s := stepOf(t, r, "0000:03:00.0"); s.State != api.CleanFailed || !strings.Contains(s.Message, "1000:0097") {
		t.Errorf("a controller without a driver: %+v", s)
	}
	if s := stepOf(t, r, "sdb"); s.State != api.CleanFailed || !strings.Contains(s.Message, "not there now") {
		t.Errorf("a disk that is gone: %+v", s)
	}
	if s := stepOf(t, r, "sda"); s.State != api.CleanSkipped {
		t.Errorf("a disk that is there: %+v", s)
	}
	if slices.ContainsFunc(r.Steps, func(s api.CleanStep) bool { return s.Target == "vda" }) {
		t.Error("a disk without a serial number can't be missed")
	}
}

// Disks of one controller are never erased at once: a command for one may reach the other. Others are.
func TestDisksOfOneControllerAreErasedOneAfterTheOther(t *testing.T) {
	for name, want := range map[string]struct {
		controllers [3]string
		at          int
	}{"of one controller": {[3]string{"nvme0", "nvme0", "nvme0"}, 1}, "of three": {[3]string{"nvme0", "nvme1", "nvme2"}, 3}} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			at, most := 0, 0
			erase := func(content []byte) error {
				mu.Lock()
				at++
				most = max(most, at)
				mu.Unlock()
				time.Sleep(time.Second) // all that may begin has begun
				clear(content)
				mu.Lock()
				at--
				mu.Unlock()
				return nil
			}
			disks, seen := map[string]*memoryDisk{}, []plan.Disk{}
			for i, controller := range want.controllers {
				disk := fmt.Sprintf("%sn%d", controller, i)
				disks[disk] = &memoryDisk{content: filled(diskBytes), methods: map[plan.Method]func([]byte) error{plan.FormatErase: erase}}
				seen = append(seen, plan.Disk{Name: disk, Bytes: diskBytes, NVMe: &plan.NVMe{Controller: controller, Format: true}})
			}
			r := clean(t, machineOf(t, disks, seen...), boot.CleanOrder{})
			for _, d := range seen {
				if s := stepOf(t, r, d.Name); s.State != api.CleanDone {
					t.Errorf("step %+v", s)
				}
			}
			if most != want.at {
				t.Errorf("%s: %d were erased at once, want %d", name, most, want.at)
			}
		})
	}
}

func TestProgressIsSeenWhileACleaningGoesOn(t *testing.T) {
	t.Parallel()
	during, goOn := make(chan struct{}), make(chan struct{})
	d := &memoryDisk{content: filled(diskBytes), methods: map[plan.Method]func([]byte) error{plan.ZeroOut: func(content []byte) error {
		close(during)
		<-goOn
		return zero(content)
	}}}
	m := machineOf(t, map[string]*memoryDisk{"sda": d}, plan.Disk{Name: "sda", Bytes: diskBytes})
	p := NewProgress()
	if _, begun := p.Report(); begun {
		t.Error("it has begun before it was begun")
	}
	ended := make(chan struct{})
	go func() { defer close(ended); m.Clean(t.Context(), boot.CleanOrder{}, p) }()
	<-during
	r, _ := p.Report()
	if s := r.Steps[0]; s.State != api.CleanRunning || r.Done || r.Bytes != diskBytes || r.TotalBytes != 2*diskBytes {
		t.Errorf("while it goes on: %+v", r)
	}
	close(goOn)
	<-ended
	if r, _ = p.Report(); r.Bytes != r.TotalBytes || r.Steps[0].State != api.CleanDone {
		t.Errorf("at its end: %+v", r)
	}
}

func TestAPatternIsOfItsPlace(t *testing.T) {
	t.Parallel()
	p := newPattern()
	whole, part := make([]byte, 4096), make([]byte, 512)
	p.fill(whole, 1<<40)
	p.fill(part, 1<<40+1024)
	if !bytes.Equal(whole[1024:1536], part) {
		t.Error("a part of the pattern differs from the same part of the whole")
	}
	if p.gone(whole, 1<<40) == nil || p.gone(whole, 0) != nil {
		t.Error("the pattern is not found where it is, or where it is not")
	}
	if clear(whole[:4096-512]); p.gone(whole, 1<<40) == nil {
		t.Error("one sector of the pattern is not found")
	}
}

// variablesOf makes a folder like efivarfs.
func variablesOf(t *testing.T, variables map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range variables {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const global = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

func TestVariablesAreDeletedAndTheNetworkBootsFirst(t *testing.T) {
	t.Parallel()
	m := machineOf(t, nil)
	disk := "\x07\x00\x00\x00" + "\x01\x00\x00\x00\x0c\x00x\x00\x00\x00" + "\x04\x06\x08\x00aaaa" + "\x7f\xff\x04\x00"
	network := "\x07\x00\x00\x00" + "\x01\x00\x00\x00\x0c\x00x\x00\x00\x00" + "\x03\x0b\x08\x00aaaa" + "\x7f\xff\x04\x00"
	m.Firmware = variablesOf(t, map[string]string{
		"BootOrder-" + global: "\x07\x00\x00\x00\x00\x00\x01\x00", "Boot0000-" + global: disk, "Boot0001-" + global: network,
		"LoaderSystemToken-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": "\x07\x00\x00\x00secret", "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f": "\x27\x00\x00\x00keys",
	})
	s := stepOf(t, clean(t, m, boot.CleanOrder{}), "UEFI variables")
	if s.State != api.CleanDone || s.Verified == "" || !strings.Contains(s.Message, "LoaderSystemToken") {
		t.Errorf("step %+v", s)
	}
	variables, err := m.readVariables()
	if err != nil || len(variables) != 4 {
		t.Errorf("%d variables are left, %v", len(variables), err)
	}
	order, err := os.ReadFile(filepath.Join(m.Firmware, bootOrder))
	if want := "\x07\x00\x00\x00\x01\x00\x00\x00"; string(order) != want || err != nil {
		t.Errorf("the boot order is % x, %v", order, err)
	}
	if s = stepOf(t, clean(t, m, boot.CleanOrder{}), "UEFI variables"); s.State != api.CleanDone || s.Message != "" {
		t.Errorf("the second time: %+v", s)
	}
}

func TestFirmwareWithoutVariablesThatCanBeReadIsNotClean(t *testing.T) {
	t.Parallel()
	m := machineOf(t, nil)
	if s := stepOf(t, clean(t, m, boot.CleanOrder{}), "UEFI variables"); s.State != api.CleanSkipped {
		t.Errorf("without UEFI: %+v", s)
	}
	m.Firmware = t.TempDir()
	if s := stepOf(t, clean(t, m, boot.CleanOrder{}), "UEFI variables"); s.State != api.CleanFailed {
		t.Errorf("without efivarfs: %+v", s)
	}
}

// fakeTPM answers what a test says, by the number of the command.
type fakeTPM struct {
	commands int
	answer   func(command, handle uint32) []byte
	next     []byte
}

func (f *fakeTPM) Write(p []byte) (int, error) {
	f.commands++
	f.next = f.answer(binary.BigEndian.Uint32(p[6:]), binary.BigEndian.Uint32(p[10:]))
	return len(p), nil
}
func (f *fakeTPM) Read(p []byte) (int, error) { return copy(p, f.next), nil }
func (f *fakeTPM) Close() error               { return nil }

func tpmAnswer(code uint32, body ...byte) []byte {
	a := binary.BigEndian.AppendUint32([]byte{0x80, 0x01}, uint32(tpmHeaderBytes+len(body)))
	return append(binary.BigEndian.AppendUint32(a, code), body...)
}

// The answers are made by hand after part 3 of the specification.
func TestATPMThatKeepsSomethingIsNotClean(t *testing.T) {
	t.Parallel()
	none := []byte{0, 0, 0, 0, 1, 0, 0, 0, 0}
	permanent := func(bits byte) []byte { return []byte{0, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, bits} }
	for name, c := range map[string]struct {
		lockout, platform uint32
		handles, property []byte
		state             api.CleanState
		words             string
	}{
		"cleared by its lockout hierarchy":  {0, 0x9a2, none, permanent(0), api.CleanDone, "lockout"},
		"cleared by its platform hierarchy": {0x9a2, 0, none, permanent(0), api.CleanDone, "platform"},
		"forbidden by both":                 {0x120, 0x9a2, none, permanent(0), api.CleanFailed, "its authorization is not empty"},
		"an owner's object is left":         {0, 0, []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0x81, 0, 0, 1}, permanent(0), api.CleanFailed, "0x81000001 is left"},
		"a platform's object is left":       {0, 0, []byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0x81, 0x80, 0, 1}, permanent(0), api.CleanDone, ""},
		"an authorization is left":          {0, 0, none, permanent(4), api.CleanFailed, "0b100"},
		"an answer that is cut":             {0, 0, []byte{0, 0, 0, 0, 1, 0, 0, 0, 9}, permanent(0), api.CleanFailed, "cut"},
		"no answer about authorizations":    {0, 0, none, []byte{0, 0, 0, 0, 6, 0, 0, 0, 0}, api.CleanFailed, "does not say"},
	} {
		f := &fakeTPM{}
		f.answer = func(command, handle uint32) []byte {
			switch {
			case command == tpmClear && handle == tpmLockout:
				return tpmAnswer(c.lockout)
			case command == tpmClear:
				return tpmAnswer(c.platform)
			case handle == tpmHandles:
				return tpmAnswer(0, c.handles...)
			default:
				return tpmAnswer(0, c.property...)
			}
		}
		m := machineOf(t, nil)
		m.TPM = func() (io.ReadWriteCloser, error) { return f, nil }
		s := stepOf(t, clean(t, m, boot.CleanOrder{}), "TPM")
		if s.State != c.state || !strings.Contains(s.Method+s.Message, c.words) {
			t.Errorf("%s: step %+v", name, s)
		}
	}
	m := machineOf(t, nil)
	m.TPM = func() (io.ReadWriteCloser, error) { return nil, errors.New("no driver serves it") }
	if s := stepOf(t, clean(t, m, boot.CleanOrder{}), "TPM"); s.State != api.CleanFailed {
		t.Errorf("without a driver: %+v", s)
	}
}

// Answers of devices that QEMU does not model are made by hand after the specifications.
func TestWhatNVMeControllersSayIsRead(t *testing.T) {
	t.Parallel()
	c := make([]byte, identifySize)
	binary.LittleEndian.PutUint16(c[256:], 0x000a)
	binary.LittleEndian.PutUint32(c[328:], 0x3)
	c[524] = 0x04
	want := plan.NVMe{SanitizeCrypto: true, SanitizeBlock: true, Format: true, FormatCrypto: true}
	if got := controllerAbilities(c); !sameNVMe(*got, want) {
		t.Errorf("got %+v", got)
	}
	if got := controllerAbilities(make([]byte, identifySize)); !sameNVMe(*got, plan.NVMe{}) {
		t.Errorf("of one that can do nothing: %+v", got)
	}
	if got := unattached(namespaces([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}), namespaces([]byte{1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0})); !slices.Equal(got, []uint32{7}) {
		t.Errorf("unattached %v", got)
	}
	for _, s := range []struct {
		log  []byte
		done bool
		fail bool
	}{
		{[]byte{0xff, 0xff, 1, 0}, true, false},
		{[]byte{0xff, 0xff, 4, 1}, true, false},
		{[]byte{0, 0x80, 2, 0}, false, false},
		{[]byte{0, 0x80, 3, 0}, false, true},
		{[]byte{0, 0, 0, 0}, false, true},
	} {
		if _, done, err := sanitizeState(s.log); done != s.done || (err != nil) != s.fail {
			t.Errorf("log % x: done %v, %v", s.log, done, err)
		}
	}
	namespace := make([]byte, identifySize)
	namespace[26], namespace[29] = 0x01|1<<4, 0x09
	if got := formatSettings(namespace, formatCrypto); got != 1|1<<4|1<<5|1<<8|2<<9 {
		t.Errorf("format settings %#x", got)
	}
}

func sameNVMe(a, b plan.NVMe) bool {
	return a.SanitizeCrypto == b.SanitizeCrypto && a.SanitizeBlock == b.SanitizeBlock && a.Format == b.Format && a.FormatCrypto == b.FormatCrypto
}

// recordedATA is the answer to IDENTIFY DEVICE of two disks, words 0 to 135, as "hdparm --Istdout" printed it in a report to a Linux mailing list (a
// Seagate ST3160023AS and a Maxtor 6B200M0; their serial numbers are blank here).
var recordedATA = map[string]struct {
	words string
	want  plan.ATA
}{
	"ST3160023AS": {`
		0c5a 3fff c837 0010 0000 0000 003f 0000 0000 0000 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 0000 4000 0004 332e
		3138 2020 2020 5354 3331 3630 3032 3341 5320 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 8010
		0000 2f00 0000 0200 0200 0007 3fff 0010 003f fc10 00fb 0110 ffff 0fff 0000 0007 0003 0078 0078 00f0 0078 0000 0000 0000
		0000 0000 0000 0000 0002 0000 0000 0000 007e 001b 346b 7d01 4003 3468 3c01 4003 407f 0000 0000 fefe 0000 0000 fe00 0000
		0000 0000 0000 0000 9eb0 12a1 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000
		0000 0000 0000 0000 0000 0000 0000 0000 0001 9eb0 12a1 9eb0 12a1 2020 0002 42b6`, plan.ATA{Security: true, Sectors: 312581808}},
	"6B200M0": {`
		0040 3fff c837 0010 0000 0000 003f 0000 0000 0000 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 0003 4000 0004 4241
		4e43 3142 5930 4d61 7874 6f72 2036 4232 3030 4d30 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 2020 8010
		0000 2f00 4000 0200 0000 0007 3fff 0010 003f fc10 00fb 0110 ffff 0fff 0000 0007 0003 0078 0078 0078 0078 0000 0000 0000
		0000 0000 0000 001f 0102 0000 0000 0000 00fe 001e 7c6b 7f09 4063 7c68 3e01 4063 407f 0000 0000 0000 fffe 0000 c0fe 0000
		0000 0000 0000 0000 8800 17bd 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000
		0000 0000 0000 0000 0000 0000 0000 0000 0001 0000 0000 0000 0000 0000 0000 0000`, plan.ATA{Security: true, Sectors: 398297088}},
}

func TestRecordedAnswersOfATADisksAreRead(t *testing.T) {
	t.Parallel()
	for model, c := range recordedATA {
		identity := make([]byte, ataSector)
		for i, text := range strings.Fields(c.words) {
			var value uint16
			if _, err := fmt.Sscanf(text, "%x", &value); err != nil {
				t.Fatal(err)
			}
			binary.LittleEndian.PutUint16(identity[2*i:], value)
		}
		got := ataAbilities(identity)
		if got == nil || *got != c.want {
			t.Fatalf("%s: got %+v, want %+v", model, got, c.want)
		}
		steps := plan.Disks([]plan.Disk{{Name: "sda", Transport: "sata", Bytes: got.Sectors * ataSector, ATA: got}})
		if want := []plan.Method{plan.ATAErase, plan.ZeroOut, plan.WriteZeroes}; !slices.Equal(steps[0].Methods, want) {
			t.Errorf("%s: methods %q, want %q", model, steps[0].Methods, want)
		}
	}
}

// ataModel is a disk with the security states of ACS-3, section 4.18, as far as they are used here.
type ataModel struct {
	enabled, locked, prepared, erased bool
	password                          string
	refuses                           byte // a command that it aborts
	sent                              []byte
}

func (d *ataModel) send(command [16]byte, to direction, data []byte, _ uint32) ([]byte, error) {
	code := command[14]
	d.sent = append(d.sent, code)
	aborted := errors.New("aborted")
	given := ""
	if to == dataOut {
		given = strings.TrimRight(string(data[2:34]), "\x00")
	}
	prepared := d.prepared
	d.prepared = false
	switch {
	case code == d.refuses:
		return nil, aborted
	case code == ataIdentify:
		binary.LittleEndian.PutUint16(data[0:], 0x40)
		security := uint16(1)
		if d.enabled {
			security |= 1 << 1
		}
		if d.locked {
			security |= 1 << 2
		}
		binary.LittleEndian.PutUint16(data[2*128:], security)
	case code == ataSetPassword && !d.locked:
		d.enabled, d.password = true, given
	case code == ataErasePrepare:
		d.prepared = true
	case code == ataEraseUnit && prepared && d.enabled && given == d.password:
		d.erased, d.enabled, d.locked = true, false, false
	case code == ataUnlock && d.enabled && given == d.password:
		d.locked = false
	case code == ataDisablePassword && d.enabled && !d.locked && given == d.password:
		d.enabled = false
	default:
		return nil, aborted
	}
	return nil, nil
}

func TestAnATAErasureLeavesNoPassword(t *testing.T) {
	t.Parallel()
	d := &ataModel{}
	if err := ataDisk(d.send).erase(true, time.Hour); err != nil || !d.erased || d.enabled {
		t.Errorf("erased %v, has a password %v: %v", d.erased, d.enabled, err)
	}
	if want := []byte{ataSetPassword, ataErasePrepare, ataEraseUnit}; !bytes.Equal(d.sent, want) {
		t.Errorf("commands % x, want % x", d.sent, want)
	}
	for _, refuses := range []byte{ataErasePrepare, ataEraseUnit} {
		d := &ataModel{refuses: refuses}
		if err := ataDisk(d.send).erase(false, 0); err == nil || d.erased || d.enabled {
			t.Errorf("command %#x is refused: erased %v, has a password %v, %v", refuses, d.erased, d.enabled, err)
		}
	}
	if err := ataDisk((&ataModel{refuses: ataSetPassword}).send).erase(false, 0); err == nil {
		t.Error("a disk that takes no password is erased")
	}
}

// A power loss in the middle of an erasure leaves the disk locked. The next cleaning knows its password, and no other.
func TestOnlyThePasswordOfACleaningIsRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disk  ataModel
		words string
	}{
		"no password":                  {ataModel{}, ""},
		"locked by a cleaning":         {ataModel{enabled: true, locked: true, password: erasePassword}, ""},
		"a cleaning's, not locked yet": {ataModel{enabled: true, password: erasePassword}, ""},
		"locked by a tenant":           {ataModel{enabled: true, locked: true, password: "tenant"}, "locked by an ATA password"},
		"a tenant's, not locked yet":   {ataModel{enabled: true, password: "tenant"}, "has an ATA password"},
	} {
		err := ataDisk(c.disk.send).letIn()
		if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) || c.disk.enabled != (c.words != "") {
			t.Errorf("%s: has a password %v, %v", name, c.disk.enabled, err)
		}
	}
}

// The answer is made by hand after the specification.
func TestWhatATADisksSayIsRead(t *testing.T) {
	t.Parallel()
	identity := make([]byte, ataSector)
	put := func(word int, value uint16) { binary.LittleEndian.PutUint16(identity[2*word:], value) }
	if ataAbilities(identity) != nil {
		t.Error("an empty answer is taken")
	}
	put(0, 0x0040)
	put(100, 0x8000)
	put(101, 0x0001)
	put(128, 0x0029)
	put(89, 0x00b4)
	put(90, 0x8101)
	want := plan.ATA{Security: true, Frozen: true, Enhanced: true, Erase: 360 * time.Minute, EnhancedErase: 514 * time.Minute, Sectors: 0x18000}
	if got := ataAbilities(identity); *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	sense := make([]byte, 32)
	sense[0], sense[7], sense[8], sense[9] = 0x72, 14, 0x09, 0x0c
	sense[15], sense[17], sense[19], sense[14], sense[21] = 0xff, 0x7f, 0x01, 0x02, 0x50
	if got := nativeSectors(sense); got != 0x02018000 {
		t.Errorf("native sectors %#x", got)
	}
	if err := ataResult(0, 8, 2, sense, noData); err != nil {
		t.Errorf("registers of a command that succeeded: %v", err)
	}
	sense[11], sense[21] = 0x04, 0x51
	if err := ataResult(0, 8, 2, sense, noData); err == nil {
		t.Error("registers of a command that was aborted are no error")
	}
	if ataResult(3, 0, 0, sense, dataOut) == nil || ataResult(0, 0, 8, make([]byte, 32), dataOut) == nil || ataResult(0, 0, 0, make([]byte, 32), dataOut) != nil {
		t.Error("a time-out or a busy disk is no error, or a success is one")
	}
	if data := passwordData(true); data[0] != 2 || string(data[2:11]) != erasePassword || passwordData(false)[0] != 0 {
		t.Errorf("password % x", data[:12])
	}
}
