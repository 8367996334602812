package health

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/inspectiontest"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// fakeDisks are disks of zeros.
type fakeDisks struct {
	// broken is a disk whose end can't be read, failing what it says of itself.
	broken  string
	failing map[string]string
}

func (f fakeDisks) Open(name string) (io.ReadSeekCloser, error) {
	return fakeDisk{ReadSeeker: io.NewSectionReader(endless{}, 0, 1<<60), broken: name == f.broken}, nil
}

func (f fakeDisks) Wear(d api.Disk) (devices.Wear, error) {
	return devices.Wear{Known: d.Transport == "nvme", Failing: f.failing[d.Name]}, nil
}

type fakeDisk struct {
	io.ReadSeeker
	broken bool
}

func (d fakeDisk) Read(p []byte) (int, error) {
	if at, _ := d.Seek(0, io.SeekCurrent); d.broken && at > 0 {
		return 0, errors.New("input/output error")
	}
	return d.ReadSeeker.Read(p)
}

func (fakeDisk) Close() error { return nil }

type endless struct{}

func (endless) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

// server is the recorded server, with a change of its files.
func server(t *testing.T, files map[string]string) Machine {
	t.Helper()
	tree := inspectiontest.Read(t, "../testdata/two-socket.tree")
	for name, content := range files {
		tree[name] = content
	}
	text, err := os.ReadFile("../testdata/two-socket.json")
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{
		Tree: sysfs.At(tree.Unpack(t)), InstalledBytes: 256 << 30, BootMAC: "b4:2e:99:00:00:01", Disks: fakeDisks{},
		Now: func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) },
	}
	if err := json.Unmarshal(text, &m.Hardware); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAHealthyServerPassesAllChecks(t *testing.T) {
	t.Parallel()
	results := Run(t.Context(), server(t, nil), Checks(), 10*time.Second)
	if len(results) != len(Checks()) {
		t.Fatalf("got %d results", len(results))
	}
	var out bytes.Buffer
	for i, r := range results {
		if !r.OK || r.Message == "" || r.Check != Checks()[i].Name || r.DurationSeconds <= 0 {
			t.Errorf("got %+v", r)
		}
		out.WriteString(r.Check + ": " + r.Message + "\n")
	}
	want := `memory: 251.5 GiB of 256.0 GiB installed
ecc: 0 corrected, 0 uncorrectable errors at 2 memory controllers
cpu: CPUs 0-31 run, no machine checks, no throttling
disks: 4 disks read at both ends; 2 report good health, the others report nothing
nics: 3 of 5 NICs have a link
clock: 2026-11-21 12:00:00 UTC, by tsc
hcas: 3 of 3 ports active, the others have no cable
gpus: 2 GPUs answer
pcie: all links at full width, no fatal errors
temperature: 2 sensors, the hottest at 41 °C
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestWhatIsWrongIsFoundAndSaid(t *testing.T) {
	t.Parallel()
	const ib = "sys/devices/pci0000:97/0000:97:02.0/0000:98:00.0/infiniband/mlx5_2/ports/1/"
	tests := []struct {
		name, check string
		files       map[string]string
		machine     func(*Machine)
		want        string
	}{
		{
			name: "a lost module", check: "memory", machine: func(m *Machine) { m.Hardware.MemoryBytes -= 8 << 30 },
			want: "the firmware reports 256.0 GiB, but the kernel sees 243.5 GiB: 12.5 GiB are missing; reseat or replace the modules",
		},
		{
			name: "an uncorrectable error", check: "ecc", files: map[string]string{"sys/devices/system/edac/mc/mc1/ue_count": "2\n"},
			want: "memory controller mc1 counted 2 uncorrectable errors; replace the module",
		},
		{
			name: "many corrected errors", check: "ecc", files: map[string]string{"sys/devices/system/edac/mc/mc0/ce_count": "101\n"},
			want: "101 corrected memory errors since boot, more than 100; replace the module before it fails",
		},
		{
			name: "a CPU that did not start", check: "cpu", files: map[string]string{"sys/devices/system/cpu/online": "0-30\n"},
			want: "CPUs 0-31 are present, but only 0-30 run; the kernel's log says why the others did not start",
		},
		{
			name: "a machine check", check: "cpu", files: map[string]string{"proc/interrupts": "MCE:   1   2   Machine check exceptions\nMCP: 9 9 polls\n"},
			want: "3 machine check exceptions since boot; check the kernel's log and the BMC's event log",
		},
		{
			name: "heat", check: "cpu", files: map[string]string{"sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_total_time_ms": "2500\n"},
			want: "cpu3 was throttled for heat for 2.5s since boot; check its fans and cooler",
		},
		{
			name: "an unreadable disk", check: "disks", machine: func(m *Machine) { m.Disks = fakeDisks{broken: "sda"} },
			want: "sda can't be read at byte 480103915520: input/output error",
		},
		{
			name: "a failing disk", check: "disks",
			machine: func(m *Machine) { m.Disks = fakeDisks{failing: map[string]string{"nvme0n1": "it has gone read-only"}} },
			want:    "nvme0n1 (Example NVMe 3.84TB, serial NV384000): it has gone read-only",
		},
		{
			name: "the boot NIC's link is down", check: "nics", machine: func(m *Machine) { m.Hardware.NICs[0].Carrier = false },
			want: "eno1, the interface that the machine booted from, has no link",
		},
		{
			name: "a slow link", check: "nics", machine: func(m *Machine) { m.Hardware.NICs[3].SpeedMbps = 25000 },
			want: "ens1f1np1 runs at 25000 Mb/s, but ens1f0np0 of the same model at 100000 Mb/s; check its cable and switch port",
		},
		{
			name: "an empty battery", check: "clock", machine: func(m *Machine) { m.Now = func() time.Time { return time.Unix(0, 0) } },
			want: "the clock shows 1970-01-01 00:00:00; set it, or replace the board's battery",
		},
		{
			name: "a given up counter", check: "clock",
			files: map[string]string{"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
			want:  "the kernel abandoned the processors' time-stamp counters for hpet; check its log, and update the firmware",
		},
		{
			name: "no subnet manager", check: "hcas", files: map[string]string{ib + "state": "2: INIT\n"},
			want: "port 1 of mlx5_2 has a link and is init: no subnet manager has configured it; is one running?",
		},
		{
			name: "a lost GPU", check: "gpus",
			files: map[string]string{"sys/devices/pci0000:30/0000:30:02.0/0000:31:00.0/config": "\xff\xff\xff\xff"},
			want:  "NVIDIA A100-SXM4-40GB at 0000:31:00.0 has fallen off its bus; power the machine off and on, and replace it if that happens again",
		},
		{
			name: "a narrow link", check: "pcie",
			files: map[string]string{"sys/devices/pci0000:97/0000:97:02.0/0000:98:00.0/current_link_width": "8\n"},
			want:  "Mellanox InfiniBand controller 101b at 0000:98:00.0 uses 8 of 16 PCIe lanes; reseat the card",
		},
		{
			name: "fatal errors", check: "pcie",
			files: map[string]string{"sys/devices/pci0000:64/0000:64:02.0/0000:65:00.0/aer_dev_fatal": "DLP 3\nTOTAL_ERR_FATAL 3\n"},
			want:  "Samsung NVMe controller a80a at 0000:65:00.0 had 3 fatal PCIe errors since boot",
		},
		{
			name: "too hot", check: "temperature",
			files: map[string]string{"sys/devices/platform/coretemp.0/hwmon/hwmon0/temp2_input": "101000\n"},
			want:  "temp2 of coretemp is at 101 °C, and its critical value is 100 °C; check fans and airflow",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := server(t, tt.files)
			if tt.machine != nil {
				tt.machine(&m)
			}
			for _, r := range Run(t.Context(), m, Checks(), 10*time.Second) {
				switch {
				case r.Check == tt.check && (r.OK || r.Message != tt.want):
					t.Errorf("got  %+v\nwant %q", r, tt.want)
				case r.Check != tt.check && !r.OK:
					t.Errorf("another check failed too: %+v", r)
				}
			}
		})
	}
}

func TestWhatIsNoFaultPasses(t *testing.T) {
	t.Parallel()
	const port = "sys/devices/pci0000:97/0000:97:02.0/0000:98:00.0/infiniband/mlx5_2/ports/1/"
	for name, files := range map[string]map[string]string{
		"an HCA without a cable":          {port + "state": "1: DOWN\n", port + "phys_state": "2: Polling\n"},
		"a card in a narrow slot":         {"sys/devices/pci0000:97/0000:97:02.0/max_link_width": "8\n", "sys/devices/pci0000:97/0000:97:02.0/0000:98:00.0/current_link_width": "8\n"},
		"siblings off on purpose":         {"sys/devices/system/cpu/online": "0-15\n", "sys/devices/system/cpu/smt/control": "off\n"},
		"a sensor nothing is wired to":    {"sys/devices/platform/coretemp.0/hwmon/hwmon0/temp3_input": "-128000\n"},
		"a NIC without a cable, as eno2":  nil,
		"some corrected errors":           {"sys/devices/system/edac/mc/mc0/ce_count": "7\n"},
		"a sensor that tells no critical": {"sys/devices/platform/coretemp.0/hwmon/hwmon0/temp9_input": "119000\n"},
	} {
		for _, r := range Run(t.Context(), server(t, files), Checks(), 10*time.Second) {
			if !r.OK {
				t.Errorf("%s: got %+v", name, r)
			}
		}
	}
}

func TestACheckThatHangsHasFailedAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		checks := []Check{
			{"hangs", func(context.Context, Machine) (string, error) { <-release; return "too late", nil }},
			{"obeys", func(ctx context.Context, _ Machine) (string, error) { <-ctx.Done(); return "", ctx.Err() }},
			{"breaks", func(context.Context, Machine) (string, error) { panic("index out of range") }},
			{"works", func(context.Context, Machine) (string, error) { return "fine", nil }},
		}
		start := time.Now()
		results := Run(t.Context(), Machine{}, checks, 3*time.Second)
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("all took %v, want 3s", took)
		}
		close(release)
		late := api.HealthResult{Message: "no result within 3s; the device or its driver hangs", DurationSeconds: 3}
		for i, want := range []api.HealthResult{
			late, late, {Message: "the check crashed: index out of range"}, {OK: true, Message: "fine"},
		} {
			if want.Check = checks[i].Name; results[i] != want {
				t.Errorf("got  %+v\nwant %+v", results[i], want)
			}
		}
	})
}

func TestTheDefaultPolicyNamesChecksThatExist(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, c := range Checks() {
		names[c.Name] = true
	}
	for name := range DefaultPolicy().Blocking {
		if !names[name] {
			t.Errorf("the policy names %q, which is no check", name)
		}
	}
}

func TestOnlyFailedBlockingChecksBlock(t *testing.T) {
	t.Parallel()
	got := DefaultPolicy().Blocks([]api.HealthResult{{Check: "memory", OK: true}, {Check: "nics"}, {Check: "disks"}, {Check: "inspection"}, {Check: "new"}})
	if len(got) != 1 || got[0].Check != "disks" {
		t.Errorf("got %+v, want disks only", got)
	}
	if got := DefaultPolicy().Blocks(nil); got != nil {
		t.Errorf("got %+v of no results", got)
	}
}

func TestTheDisksThatTellNothingOfThemselvesAreCountedInWords(t *testing.T) {
	t.Parallel()
	for want, disks := range map[string][]string{
		"1 disk read at both ends; none reports its wear":                            {"sda"},
		"1 disk read at both ends, all report good health":                           {"nvme0n1"},
		"2 disks read at both ends; 1 report good health, the others report nothing": {"nvme0n1", "sda"},
	} {
		m := server(t, nil)
		all := m.Hardware.Disks
		m.Hardware.Disks = nil
		for _, d := range all {
			if slices.Contains(disks, d.Name) {
				m.Hardware.Disks = append(m.Hardware.Disks, d)
			}
		}
		if got, err := checkDisks(t.Context(), m); got != want || err != nil {
			t.Errorf("%v: %q, %v; want %q", disks, got, err, want)
		}
	}
}
