package container_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// handScript is how one makes the same containers by hand: it is given a directory with one bundle a member, and makes and
// removes all of them at once. The umount is what crun needs on a host with hybrid control groups.
const handScript = `
set -e
cd "$1"
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
begin=$(date +%s%N)
for m in m-*; do
  crun --root "$1/crun" run --detach --bundle "$1/$m" "$m" >"$m/log" 2>&1 </dev/null &
done
wait
started=$(date +%s%N)
for m in m-*; do
  (crun --root "$1/crun" delete --force "$m" >>"$m/log" 2>&1; rm -rf "$1/$m") &
done
wait
ended=$(date +%s%N)
echo $((started - begin)) $((ended - started))
`

// BenchmarkStartAndClean tells how long members take, all at once, by the driver and by a script that makes the same containers
// from ready-made bundles. Run it with -benchtime=5x.
func BenchmarkStartAndClean(b *testing.B) {
	for _, count := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("members=%d", count), func(b *testing.B) {
			var driverStart, driverClean, scriptStart, scriptClean, driverCPU, scriptCPU time.Duration
			for b.Loop() {
				s, c, cpu := benchDriver(b, count)
				driverStart, driverClean, driverCPU = driverStart+s, driverClean+c, driverCPU+cpu
				s, c, cpu = benchScript(b, count)
				scriptStart, scriptClean, scriptCPU = scriptStart+s, scriptClean+c, scriptCPU+cpu
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(b.N) }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(driverStart), "driver-start-ms")
			b.ReportMetric(ms(scriptStart), "script-start-ms")
			b.ReportMetric(ms(driverClean), "driver-clean-ms")
			b.ReportMetric(ms(scriptClean), "script-clean-ms")
			b.ReportMetric(ms(driverCPU)/float64(count), "driver-cpu-ms/member")
			b.ReportMetric(ms(scriptCPU)/float64(count), "script-cpu-ms/member")
			b.ReportMetric(float64(driverStart)/float64(scriptStart), "start-ratio")
			b.ReportMetric(float64(driverStart+driverClean)/float64(scriptStart+scriptClean), "ratio")
		})
	}
}

func sleepers(b *testing.B, count int) (*rig, []driver.Member) {
	r := newRig(b, "crun")
	r.cfg.MemberArgs = []string{"/usr/bin/sleep", "infinity"}
	members := make([]driver.Member, count)
	for i := range members {
		members[i] = r.member(b)
	}
	return r, members
}

func atOnce(members []driver.Member, do func(driver.Member) error) error {
	var group sync.WaitGroup
	errs := make([]error, len(members))
	for i, m := range members {
		group.Go(func() { errs[i] = do(m) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func benchDriver(b *testing.B, count int) (start, clean, cpu time.Duration) {
	r, members := sleepers(b, count)
	d := r.open(b)
	if _, err := d.Observe(b.Context()); err != nil { // opens the host, as an agent has long done
		b.Fatal(err)
	}
	cpuBefore := cpuTime(b)
	begin := time.Now()
	err := atOnce(members, func(m driver.Member) error { return d.Start(b.Context(), m) })
	start = time.Since(begin)
	if err != nil {
		b.Fatal(err)
	}
	begin = time.Now()
	err = atOnce(members, func(m driver.Member) error {
		return errors.Join(d.Stop(b.Context(), m.Assignment.ID, 0), d.Clean(b.Context(), m.Assignment.ID))
	})
	clean = time.Since(begin)
	if err != nil {
		b.Fatal(err)
	}
	return start, clean, cpuTime(b) - cpuBefore
}

// cpuTime is what this process and those it has waited for have used of processors.
func cpuTime(b *testing.B) time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			b.Fatal(err)
		}
		total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return total
}

// benchScript lets the driver render one member's bundle, copies it for all, and runs the script on the copies.
func benchScript(b *testing.B, count int) (start, clean, cpu time.Duration) {
	r, members := sleepers(b, 1)
	d := r.open(b)
	m := members[0]
	if err := d.Start(b.Context(), m); err != nil {
		b.Fatal(err)
	}
	bundle := d.StagedDir(m.Assignment.ID)
	dir, err := os.MkdirTemp("", "nearmetal-bench-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range count {
		copyBundle(b, bundle, filepath.Join(dir, fmt.Sprintf("m-%d", i)), fmt.Sprintf("/nearmetal/%s/m-%d", r.cfg.Node, i))
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "bash", "-c", handScript, "bash", dir)
	output, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("the script failed: %v: %s", err, output)
	}
	if log, err := exec.Command("sh", "-c", "cat "+dir+"/m-*/log 2>/dev/null").Output(); err == nil && len(log) > 0 {
		b.Fatalf("the script failed: %s", log)
	}
	var startNs, cleanNs int64
	if _, err := fmt.Sscan(string(output), &startNs, &cleanNs); err != nil {
		b.Fatalf("the script said %q", output)
	}
	if err := d.Clean(b.Context(), m.Assignment.ID); err != nil {
		b.Fatal(err)
	}
	return time.Duration(startNs), time.Duration(cleanNs), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func copyBundle(b *testing.B, from, to, cgroup string) {
	data, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		b.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		b.Fatal(err)
	}
	spec.Root.Path = filepath.Join(to, "root")
	spec.Linux.CgroupsPath = cgroup
	if data, err = json.Marshal(spec); err != nil {
		b.Fatal(err)
	}
	if output, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		b.Fatalf("copying the bundle: %v: %s", err, output)
	}
	if err := os.WriteFile(filepath.Join(to, "config.json"), data, 0o600); err != nil {
		b.Fatal(err)
	}
}
