package rapl_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/energy/rapl"
	"github.com/nearmetal/nearmetal/internal/energy/standin"
)

const wraps = 262_143_328_850

// tree is a tree of zones, with a clock.
type tree struct {
	t   *testing.T
	dir string
	now time.Time
}

func newTree(t *testing.T) *tree {
	t.Helper()
	tr := &tree{t: t, dir: t.TempDir(), now: time.Unix(1_000_000, 0)}
	// The control type itself is listed beside its zones, and another interface to the same counters.
	for folder, name := range map[string]string{
		"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1", "intel-rapl:1:0": "core", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
	} {
		tr.write(folder+"/name", name)
		tr.write(folder+"/max_energy_range_uj", fmt.Sprint(wraps))
		tr.write(folder+"/energy_uj", "0")
	}
	tr.write("intel-rapl/enabled", "1")
	return tr
}

func (tr *tree) write(name, text string) {
	tr.t.Helper()
	file := filepath.Join(tr.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *tree) after(d time.Duration, zone string, microjoules int64) {
	tr.now = tr.now.Add(d)
	tr.write(zone+"/energy_uj", fmt.Sprint(microjoules))
}

func (tr *tree) open() *rapl.Reader {
	return rapl.Open(tr.dir, func() time.Time { return tr.now })
}

func read(t *testing.T, r *rapl.Reader) *energy.Counter {
	t.Helper()
	reading, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return reading.Counter
}

func TestPackagesAndMemoryAreAddedUpAndTheirPartsAreNot(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	r := tr.open()
	read(t, r)
	tr.after(time.Second, "intel-rapl:0", 50e6)
	tr.after(0, "intel-rapl:0:0", 40e6)
	tr.after(0, "intel-rapl:0:1", 5e6)
	tr.after(0, "intel-rapl:1", 30e6)
	tr.after(0, "intel-rapl:2", 100e6)
	tr.after(0, "intel-rapl-mmio:0", 50e6)
	c := read(t, r)
	if c.Microjoules != 85e6 || c.Breaks != 0 {
		t.Errorf("got %d uJ, want 50 + 30 J of the packages and 5 J of memory", c.Microjoules)
	}
	var names []string
	for _, d := range c.Domains {
		names = append(names, fmt.Sprintf("%s %d %v", d.Name, d.Microjoules, d.Counted))
	}
	want := "package-0 50000000 true, core 40000000 false, dram 5000000 true, package-1 30000000 true, core#2 0 false, psys 100000000 false"
	if got := strings.Join(names, ", "); got != want {
		t.Errorf("the domains are %s, want %s", got, want)
	}
}

func TestACounterThatWrapsGoesOn(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.after(0, "intel-rapl:0", wraps-10e6)
	r := tr.open()
	read(t, r)
	tr.after(time.Second, "intel-rapl:0", 20e6)
	if c := read(t, r); c.Microjoules != 30e6 || c.Breaks != 0 {
		t.Errorf("got %d uJ and %d breaks over a wrap, want 30 J and none", c.Microjoules, c.Breaks)
	}
}

func TestACounterThatBeganAnewIsABreakAndNoWrap(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.after(0, "intel-rapl:0", 100_000e6)
	r := tr.open()
	read(t, r)
	tr.after(5*time.Second, "intel-rapl:0", 1e6) // as a wrap, this would be 162 kJ within 5 s
	c := read(t, r)
	if c.Microjoules != 0 || c.Breaks != 1 {
		t.Errorf("got %d uJ and %d breaks, want nothing counted over one break", c.Microjoules, c.Breaks)
	}
	tr.after(time.Second, "intel-rapl:0", 11e6)
	if c = read(t, r); c.Microjoules != 10e6 || c.Breaks != 1 {
		t.Errorf("got %d uJ and %d breaks after it, want 10 J more", c.Microjoules, c.Breaks)
	}
}

func TestATimeInWhichACounterMayHaveWrappedTwiceIsABreak(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	r := tr.open()
	read(t, r)
	tr.after(time.Hour, "intel-rapl:0", 5e6) // 1000 W fill the range in 262 s
	if c := read(t, r); c.Microjoules != 0 || c.Breaks != 1 {
		t.Errorf("got %d uJ and %d breaks after an hour without a reading, want a break", c.Microjoules, c.Breaks)
	}
}

func TestZonesThatGoAreABreak(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	r := tr.open()
	read(t, r)
	if err := os.RemoveAll(filepath.Join(tr.dir, "intel-rapl:1")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(t.Context()); err == nil {
		t.Fatal("a zone that is gone was read")
	}
	tr.after(time.Second, "intel-rapl:0", 7e6)
	if c := read(t, r); c.Breaks != 1 {
		t.Errorf("%d breaks, want one", c.Breaks)
	}
}

func TestAMachineWithoutCountersSaysWhy(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"no framework": filepath.Join(t.TempDir(), "none"), "no zones": t.TempDir()} {
		_, err := rapl.Open(dir, nil).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), "virtual machine") {
			t.Errorf("%s: got %v; want the reason", name, err)
		}
	}
}

func TestRubbishIsNoCount(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "-5", "12W", "99999999999999999999999"} {
		tr := newTree(t)
		tr.write("intel-rapl:0/energy_uj", text)
		if _, err := tr.open().Read(t.Context()); err == nil || !strings.Contains(err.Error(), "instead of a number") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// asNobody is set in the process that reads as another user.
const asNobody = "NEARMETAL_RAPL_AS_NOBODY"

func TestOnlyRootMayReadAndOthersAreToldSo(t *testing.T) {
	if dir := os.Getenv(asNobody); dir != "" {
		_, err := rapl.Open(dir, nil).Read(context.Background())
		fmt.Printf("READ: %v\n", err)
		return
	}
	t.Parallel()
	tr := newTree(t)
	for _, zone := range []string{"intel-rapl:0", "intel-rapl:1"} {
		if err := os.Chmod(filepath.Join(tr.dir, zone, "energy_uj"), 0o400); err != nil { // as Linux has it
			t.Fatal(err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), asNobody+"="+tr.dir)
	if os.Geteuid() == 0 {
		for dir := tr.dir; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path = filepath.Join(tr.dir, "rapl.test") // the build's folder may be root's alone
		if err := os.WriteFile(cmd.Path, text, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	} else if err := os.Chmod(filepath.Join(tr.dir, "intel-rapl:0/energy_uj"), 0); err != nil {
		t.Fatal(err)
	}
	output, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "only root may read") || !strings.Contains(string(output), "CVE-2020-8694") {
		t.Errorf("got %v\n%s\nwant that only root may read, since CVE-2020-8694", err, output)
	}
}

func TestAStandInFollowsCPUTimeWrapsAndIsNoMeasurement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const small = 100e6
	made, err := standin.New(dir, small)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	r := rapl.Open(dir, func() time.Time { return now })
	at := func(busy int64) int64 {
		if err := made.Add(int64(10*time.Millisecond), busy); err != nil {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Millisecond)
		reading, err := r.Read(t.Context())
		if err != nil || reading.Modelled != standin.Note {
			t.Fatalf("%+v, %v", reading, err)
		}
		if reading.Counter.Breaks != 0 {
			t.Fatalf("%d breaks", reading.Counter.Breaks)
		}
		return reading.Counter.Microjoules
	}
	at(0)
	before := int64(0)
	for n := range 1000 { // 390 J or 230 J of the package, over several wraps at 100 J
		busy := int64(0)
		if n%2 == 1 {
			busy = int64(20 * time.Millisecond) // both CPUs
		}
		used := at(busy) - before
		before += used
		want := int64(230e3) // (20 + 3) W for 10 ms
		if busy > 0 {
			want = 550e3 // and 2 x (15 + 1) W
		}
		if used != want {
			t.Fatalf("step %d: %d uJ, want %d", n, used, want)
		}
	}
	if r.Kind() != api.EnergyRAPL {
		t.Errorf("it calls itself %s", r.Kind())
	}
}
