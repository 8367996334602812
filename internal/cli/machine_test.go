package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// machineNode is a node of a machine in a phase.
func machineNode(name string, phase api.MachinePhase) api.Node {
	n := api.Node{
		Name: name, Phase: api.NodePhase(phase), Members: []string{},
		Machine: &api.MachinePart{
			Spec: api.MachineSpec{
				MACs: []string{"52:54:00:00:00:01"}, Labels: map[string]string{"rack": "r1"},
				Power: api.PowerControl{Kind: api.PowerRedfish, Address: "https://bmc1", User: "operator"},
			},
			Record:     api.MachineRecord{Name: name, Phase: phase, Power: api.PowerOff, PowerObservedAt: t0.Add(time.Minute)},
			EnrolledAt: t0, TargetSeconds: 60,
		},
	}
	if phase == api.MachineReady {
		n.Machine.Record.Power = api.PowerOn
	}
	return n
}

// booted gives a machine a boot that has come so far.
func booted(n api.Node, stages int) api.Node {
	boot := &api.Boot{Purpose: api.BootEnvironment, Environment: "debian-mpi", Digest: "sha256:abc", DecidedAt: t0, RootBytes: 200 << 20, ReadyBytes: 50 << 20}
	for i, stage := range api.BootStages()[:stages] {
		boot.Stages = append(boot.Stages, api.StageTime{Stage: stage, At: t0.Add(time.Duration(i+1) * time.Second)})
	}
	boot.Local = stages == len(api.BootStages())
	n.Machine.Record.Boot = boot
	return n
}

// asked notes a power request, taken up or not.
func asked(n api.Node, number, done int64) api.Node {
	n.Machine.Request = api.PowerRequest{Number: number, Action: api.PowerActionOn, Environment: "debian-mpi", By: "ada", At: t0}
	n.Machine.Record.DoneRequest = done
	return n
}

// squeezed is a result with one space for every run of them: tables without their alignment.
func squeezed(r result) result {
	r.out = regexp.MustCompile(" +").ReplaceAllString(r.out, " ")
	return r
}

// inTurn answers with one state after another, and stays with the last.
func (f *fake) inTurn(pattern string, states ...any) {
	var mu sync.Mutex
	f.on(pattern, func(*http.Request, string) any {
		mu.Lock()
		defer mu.Unlock()
		v := states[0]
		if len(states) > 1 {
			states = states[1:]
		}
		return v
	})
}

func TestAMachineIsEnrolledAndLookedAt(t *testing.T) {
	f := newFake(t)
	secret := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(secret, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	looking := booted(machineNode("n1", api.MachineInspecting), 3)
	found := machineNode("n1", api.MachineOff)
	found.Machine.Record.InspectedAt = moment(time.Minute)
	found.Machine.Hardware = &api.Hardware{
		Vendor: "Example", Product: "Board", MemoryBytes: 4 << 30, CPU: api.CPU{Cores: 4}, Disks: []api.Disk{{Name: "vda"}}, NICs: make([]api.NIC, 2),
	}
	f.fixed("POST /v1/nodes", machineNode("n1", api.MachineEnrolled))
	f.inTurn("GET /v1/nodes/n1", looking, found)
	r := f.shell().run(t, "node", "enroll", "n1", "--mac", "52-54-00-00-00-0A,52:54:00:00:00:0b", "--power", "ipmi", "--bmc", "bmc1", "--bmc-user", "operator",
		"--bmc-password-file", secret, "--console", "ipmi-sol", "--labels", "rack=r1", "--wait")
	has(t, r, 0, "node n1 is enrolled: 4 cores, 4GiB memory, 1 disk, 2 NICs, Example Board\n", "inspecting, stage loader (4 of 8)")
	if got, want := f.requests()[0], `POST /v1/nodes {"name":"n1","spec":{"macs":["52:54:00:00:00:0a","52:54:00:00:00:0b"],`+
		`"power":{"kind":"ipmi","address":"bmc1:623","user":"operator"},"console":"ipmi-sol","labels":{"rack":"r1"}},"password":"open sesame","inspect":true}`; got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}

func TestWhatIsWrongWithAMachineIsToldByItsFlagBeforeAnythingIsAsked(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"n1 --power wol":                                                "--mac 52:54:00:12:34:56",
		"n1 --mac 52:54:00:00:00:01":                                    "--power redfish, ipmi, wol or manual",
		"--mac 52:54:00:00:00:01 --power wol":                           "name the machine",
		"n1 --mac 52:54:00:00:00 --power wol":                           `--mac[0]: "52:54:00:00:00" is not a MAC address`,
		"n1 --mac 52:54:00:00:00:01 --power wool":                       `did you mean "wol"?`,
		"n1 --mac 52:54:00:00:00:01 --power redfish --bmc-user x":       "--bmc: is missing",
		"n1 --mac 52:54:00:00:00:01 --power wol --bmc 10.0.0.1":         "Wake-on-LAN has no BMC",
		"n1 --mac 52:54:00:00:00:01 --power wol --console ipmi-sol":     "--console: is by IPMI",
		"n1 --mac 52:54:00:00:00:01 --power wol --console localhost":    "tcp://HOST:PORT",
		"N1 --mac 52:54:00:00:00:01 --power wol":                        "NAME:",
		"n1 -f x.yaml":                                                  `omit "n1"`,
		"-f x.yaml --bmc-user x":                                        "--bmc-user: with -f it stands in the file",
		"n1 --mac 52:54:00:00:00:01 --power ipmi --bmc b --bmc-user x":  "--bmc-password-file FILE",
		"n1 --mac 52:54:00:00:00:01 --power wol --inspect --no-inspect": "--inspect conflicts with --no-inspect",
		"-f x.yaml --no-inspect --wait":                                 "--wait conflicts with --no-inspect",
	} {
		has(t, f.shell().run(t, append([]string{"node", "enroll"}, strings.Fields(line)...)...), cli.ExitUsage, want)
	}
	f.expect()
}

func TestAFileOfMachinesIsEnrolledAsFarAsItCanBe(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "rack.yaml")
	text := `
power: {kind: redfish, user: operator}
password: secret
machines:
- name: n1
  spec:
    macs: ["52:54:00:00:00:01"]
    power: {address: "https://bmc1"}
- name: n2
  spec:
    macs: ["52:54:00:00:00:02"]
    power: {address: "https://bmc2", user: other}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.on("POST /v1/nodes", func(_ *http.Request, body string) any {
		if strings.Contains(body, `"n1"`) {
			return &api.Problem{Status: http.StatusConflict, Code: "duplicate_mac", Detail: `MAC 52:54:00:00:00:01 belongs to machine "n9" already`}
		}
		return machineNode("n2", api.MachineEnrolled)
	})
	has(t, f.shell().run(t, "node", "enroll", "-f", file), cli.ExitConflict, "node n2 is enrolled, and its inspection begins\n", `Error: node n1: MAC 52:54`)
	got := strings.Join(f.requests(), "")
	if !strings.Contains(got, `"user":"other"`) || !strings.Contains(got, `"password":"secret"`) || !strings.Contains(got, `"kind":"redfish"`) {
		t.Errorf("asked %s", got)
	}
	looked := machineNode("n2", api.MachineOff)
	looked.Machine.Record.InspectedAt, looked.Machine.Hardware = moment(0), &api.Hardware{CPU: api.CPU{Cores: 4}}
	f.fixed("GET /v1/nodes/n2", looked)
	has(t, f.shell().run(t, "node", "enroll", "-f", file, "--wait"), cli.ExitConflict, "node n2 is enrolled: 4 cores")
	before := len(f.requests())
	has(t, f.shell().run(t, "node", "enroll", "-f", file, "--no-inspect"), cli.ExitConflict, "node n2 is enrolled\n")
	if got := strings.Join(f.requests()[before:], ""); strings.Contains(got, `"inspect"`) {
		t.Errorf("with --no-inspect asked %s", got)
	}
}

func TestEachOfSeveralErrorsIsTold(t *testing.T) {
	f := newFake(t)
	for _, name := range []string{"n1", "n2"} {
		f.fixed("DELETE /v1/nodes/"+name, &api.Problem{Status: 404, Code: "node_not_found", Detail: "there is no node " + name})
	}
	r := f.shell().run(t, "node", "remove", "n1", "n2")
	if want := "Error: there is no node n1\nError: there is no node n2\n"; r.err != want || r.code != cli.ExitNotFound {
		t.Errorf("exit code %d: %q, want %q", r.code, r.err, want)
	}
}

func TestManyMachinesAreWaitedForByOneList(t *testing.T) {
	f := newFake(t)
	var before, after api.List[api.Node]
	for i := range 9 {
		name := fmt.Sprint("n", i)
		before.Items = append(before.Items, asked(booted(machineNode(name, api.MachineBooting), 3), 1, 1))
		after.Items = append(after.Items, asked(booted(machineNode(name, api.MachineReady), 8), 1, 1))
		f.fixed("GET /v1/nodes/"+name, after.Items[i])
	}
	f.fixed("POST /v1/power", before)
	f.inTurn("GET /v1/nodes", before, after)
	r := f.shell().run(t, "node", "power", "on", "--selector", "rack=r1", "--env", "debian-mpi", "--wait")
	has(t, r, 0, "9 nodes: 9 booting debian-mpi, stage loader (4 of 8)", "node n4 is ready with debian-mpi after 8.0s")
}

func TestAWaitTellsOfEachNodeWhatChanged(t *testing.T) {
	f := newFake(t)
	off, last := asked(machineNode("n1", api.MachineOff), 1, 0), asked(booted(machineNode("n1", api.MachineReady), 8), 1, 1)
	other := asked(machineNode("n2", api.MachineBooting), 1, 1)
	other.Message = "Redfish at bmc2: the BMC does not answer in time"
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{off, other}})
	f.inTurn("GET /v1/nodes/n1", off, asked(booted(machineNode("n1", api.MachineBooting), 3), 1, 1), last)
	f.inTurn("GET /v1/nodes/n2", other, other, asked(booted(machineNode("n2", api.MachineReady), 8), 1, 1))
	r := f.shell().run(t, "node", "power", "on", "n1", "n2", "--env", "debian-mpi", "--wait")
	has(t, r, 0, "node n2 is ready")
	got := regexp.MustCompile(`(?m)^ *[0-9.]+s  `).ReplaceAllString(r.err, "")
	want := "node n1: off\nnode n2: booting: Redfish at bmc2: the BMC does not answer in time\nnode n1: booting debian-mpi, stage loader (4 of 8)\n"
	if got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
}

func TestPowerOnWaitsStageByStageAndTellsHowLongEachTook(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{asked(machineNode("n1", api.MachineOff), 3, 2)}})
	last := asked(booted(machineNode("n1", api.MachineReady), 8), 3, 3)
	f.inTurn("GET /v1/nodes/n1", asked(machineNode("n1", api.MachineOff), 3, 2), asked(booted(machineNode("n1", api.MachineBooting), 1), 3, 3),
		asked(booted(machineNode("n1", api.MachineBooting), 5), 3, 3), last)
	r := f.shell().run(t, "node", "power", "on", "n1", "--env", "debian-mpi", "--wait")
	has(t, r, 0, "node n1: booting debian-mpi, stage firmware (2 of 8)", "stage root (6 of 8)",
		"node n1 is ready with debian-mpi after 8.0s (power 1.0, firmware 1.0, dhcp 1.0, loader 1.0, kernel 1.0, root 1.0, agent 1.0, ready 1.0)\n")
	if got, want := f.requests()[0], `POST /v1/power {"nodes":["n1"],"action":"on","environment":"debian-mpi"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

func TestAPowerWaitEndsWithWhatWentWrong(t *testing.T) {
	broken := asked(machineNode("n1", api.MachineFailed), 1, 1)
	broken.Machine.Record.Message = "no DHCP request came in 15m0s; look at its console"
	for want, now := range map[string]api.Node{
		`node "n1" failed: no DHCP request came`: broken,
		"ada asked for power on meanwhile":       asked(machineNode("n1", api.MachineOff), 2, 1),
	} {
		f := newFake(t)
		f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{asked(machineNode("n1", api.MachineOff), 1, 0)}})
		f.fixed("GET /v1/nodes/n1", now)
		r := f.shell().run(t, "node", "power", "cycle", "n1", "--wait")
		if r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("exit code %d, %q; want %q", r.code, r.err, want)
		}
	}
	f := newFake(t)
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{asked(machineNode("n1", api.MachineOff), 1, 0)}})
	f.fixed("GET /v1/nodes/n1", asked(machineNode("n1", api.MachineStopping), 1, 1))
	has(t, f.shell().run(t, "node", "power", "off", "n1", "--wait", "--timeout", "1ms"), 1, "not off after 1ms: n1; it goes on")
}

func TestPowerNeedsASelectionAndForceNeedsNames(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"off":                            "name the nodes, or select them by labels",
		"off n1 --selector rack=r1":      "conflicts with node names",
		"off --selector rack=r1 --force": "a selector is not enough",
		"on n1":                          "--env NAME",
	} {
		has(t, f.shell().run(t, append([]string{"node", "power"}, strings.Fields(line)...)...), cli.ExitUsage, want)
	}
	f.expect()
	f.fixed("POST /v1/power", &api.Problem{Status: http.StatusUnprocessableEntity, Code: "empty_selection", Detail: "none of the 3 machines has the labels rack=r9"})
	has(t, f.shell().run(t, "node", "power", "off", "-l", "rack=r9"), cli.ExitUsage, "none of the 3 machines")
	f.expect(`POST /v1/power {"selector":{"rack":"r9"},"action":"off"}`)
}

func TestWhatIsAskedOfPowerIsToldAsItIs(t *testing.T) {
	f := newFake(t)
	unread := machineNode("n3", api.MachineOff)
	unread.Machine.Record.Power = api.PowerUnknown
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{machineNode("n1", api.MachineOff), machineNode("n2", api.MachineReady), unread}})
	has(t, f.shell().run(t, "node", "power", "off", "n1", "n2", "n3"), 0, "node n1 is off already\nnode n2 is to be powered off\nnode n3 is to be powered off\n")
	f = newFake(t)
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{booted(machineNode("n1", api.MachineBooting), 2)}})
	has(t, f.shell().run(t, "node", "power", "on", "n1", "--env", "other"), 0, "powered on with other; it was booting debian-mpi, which ends here\n")
	has(t, f.shell().run(t, "node", "power", "on", "n1", "--env", "debian-mpi"), 0, "powered on with debian-mpi\n")
}

func TestPowerStatusAndListsShowMachines(t *testing.T) {
	f := newFake(t)
	nodes := api.List[api.Node]{Items: []api.Node{booted(machineNode("n1", api.MachineReady), 8), machineNode("n2", api.MachineOff), {Name: "n3"}, booted(machineNode("n4", api.MachineBooting), 3)}}
	nodes.Items[1].Offer.Capacity = api.NodeCapacity{Cores: make([]api.Core, 4), MemoryBytes: 8 << 30}
	nodes.Items[0].Machine.Sensors = &api.MachineSensors{State: api.SensorCritical}
	nodes.Items[3].Machine.Sensors = &api.MachineSensors{State: api.SensorOK}
	nodes.Items[3].Machine.Record.Health = []api.HealthResult{{Check: "disks"}}
	f.fixed("GET /v1/nodes", nodes)
	r := f.shell().run(t, "node", "power", "status")
	has(t, squeezed(r), 0, "n1 on redfish ready debian-mpi 30s ago", "n2 off redfish off -")
	if strings.Contains(r.out, "n3") {
		t.Errorf("a node that is no machine is shown:\n%s", r.out)
	}
	has(t, f.shell().run(t, "node", "power", "status", "n3"), cli.ExitNotFound, `there is no machine "n3"`)
	has(t, squeezed(f.shell().run(t, "node", "list")), 0, "NAME PHASE POWER HEALTH ENVIRONMENT", "n1 ready on critical debian-mpi", "n2 off off - - 0 of 4 (not confirmed) 0MiB of 8GiB (not confirmed)",
		"n4 booting off warning debian-mpi", "stage loader (4 of 8)")
}

func TestTheSensorsOfAMachineAreShownWithUnitsAndThresholds(t *testing.T) {
	f := newFake(t)
	n := machineNode("n1", api.MachineReady)
	value, limit := 91.4, 90.0
	n.Machine.Sensors = &api.MachineSensors{
		State: api.SensorCritical, Message: "CPU Temp 91 °C (critical)", ReadAt: t0,
		Sensors: []api.Sensor{
			{Name: "CPU Temp", Kind: api.SensorTemperature, Unit: api.UnitCelsius, Value: &value, State: api.SensorCritical, Thresholds: &api.SensorThresholds{UpperCritical: &limit}},
			{Name: "Fan 1", Kind: api.SensorFan, Unit: api.UnitRPM, State: api.SensorUnavailable, Message: "the BMC has no reading"},
		},
	}
	f.fixed("GET /v1/nodes/n1", n)
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Sensors: critical, read 90s ago: CPU Temp 91 °C (critical)\n",
		"CPU Temp temperature 91 °C critical critical from 90 °C", "Fan 1 fan - unavailable - the BMC has no reading")
}

func TestAMachineIsShownWithHardwareBootAndHealth(t *testing.T) {
	f := newFake(t)
	n := asked(booted(machineNode("n1", api.MachineReady), 8), 4, 3)
	n.Agent = &api.AgentPart{Version: "1", FirstSeenAt: t0}
	n.Offer = api.Offer{
		Confirmed: true, Capacity: api.NodeCapacity{Cores: make([]api.Core, 14)}, Differences: []string{"inspected 16 cores, the agent offers 14"},
	}
	n.Machine.Record.Boot.PeerBytes = 40 << 20
	n.Machine.Record.Health = []api.HealthResult{{Check: "memory", OK: true, DurationSeconds: 0.5}, {Check: "disks", Message: "vda: SMART says failing"}}
	n.Machine.Hardware = &api.Hardware{
		Vendor: "Example", Product: "Board", MemoryBytes: 4 << 30, Firmware: api.FirmwareUEFI, CPU: api.CPU{Model: "Processor", Sockets: 1, Cores: 4, Threads: 8},
		NICs: []api.NIC{{
			Name: "eth0", MAC: "52:54:00:00:00:01", Role: "provisioning", Carrier: true, SpeedMbps: 1000, LLDP: &api.Neighbor{Port: "7", System: "switch1"},
		}, {
			Name: "eth1", MAC: "52:54:00:00:00:02", Carrier: true, TotalVFs: 7, IOMMU: &api.IOMMU{Group: "14", Company: []string{"0000:04:00.1"}},
		}, {
			Name: "eth2", MAC: "52:54:00:00:00:03", Carrier: true, TotalVFs: 1,
		}},
		HCAs: []api.HCA{{Name: "mlx5_0", Type: "MT4123", Ports: []string{"1: InfiniBand, active, 100 Gb/sec"}, TotalVFs: 8, IOMMU: &api.IOMMU{Group: "40"}}},
	}
	f.fixed("GET /v1/nodes/n1", n)
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Cores used: 0 of 14\n", "Differences: inspected 16 cores, the agent offers 14",
		"Asked for: power on with debian-mpi, by ada 90s ago", "52:54:00:00:00:01, provisioning, 1000 Mb/s, at port 7 of switch1",
		"52:54:00:00:00:02, 7 VFs, IOMMU group 14 shared with 0000:04:00.1 (enable ACS)", "52:54:00:00:00:03, 1 VF, no IOMMU",
		"MT4123 0 1: InfiniBand, active, 100 Gb/sec; 8 VFs; IOMMU group 40",
		"firmware 1.0 2.0", "8.0s in all, within the target of 60s", "Root read: 50MiB of 200MiB when its agent called", "Root local: yes: 200MiB, 40MiB of it from other machines", "disks no 0.00 vda: SMART says failing")
}

func TestRemoveWaitsUntilTheMachineIsGone(t *testing.T) {
	f := newFake(t)
	f.fixed("DELETE /v1/nodes/n1", nil)
	f.inTurn("GET /v1/nodes/n1", machineNode("n1", api.MachineRemoving), &api.Problem{Status: 404, Code: "node_not_found", Detail: `there is no node "n1"`})
	has(t, f.shell().run(t, "node", "remove", "n1", "--force", "--wait"), 0, "node n1 is removed\n", "removing")
	if got := f.requests()[0]; got != "DELETE /v1/nodes/n1?force=true" {
		t.Errorf("asked %s", got)
	}
}

func TestEnrolmentTokensAndCandidates(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/enroll-tokens", api.EnrollmentToken{ID: "abc", Secret: "nm1.secret", Prefix: "rack1-"})
	f.fixed("GET /v1/enroll-tokens", api.List[api.EnrollmentToken]{Items: []api.EnrollmentToken{{ID: "abc", Prefix: "rack1-", Uses: 40, ExpiresAt: t0.Add(time.Hour), CreatedAt: t0}}})
	f.fixed("DELETE /v1/enroll-tokens/abc", nil)
	f.fixed("GET /v1/candidates", api.List[api.Candidate]{Items: []api.Candidate{{MAC: "52:54:00:00:00:09", Problem: "its token has ended", FirstSeenAt: t0, LastSeenAt: t0}}})
	r := f.shell().run(t, "node", "enroll-token", "create", "--prefix", "rack1-", "--uses", "40", "--power", "ipmi", "--bmc-user", "operator", "--bmc-password-file", "/dev/null",
		"--valid-for", "7d")
	if r.out != "nm1.secret\n" {
		t.Errorf("the secret: %q %s", r.out, r.err)
	}
	has(t, squeezed(f.shell().run(t, "node", "enroll-token", "list")), 0, "rack1- 40")
	has(t, f.shell().run(t, "node", "enroll-token", "delete", "abc"), 0, "enrollment token abc deleted\n")
	has(t, f.shell().run(t, "node", "candidates"), 0, "52:54:00:00:00:09", "its token has ended")
	if got, want := f.requests()[0], `POST /v1/enroll-tokens {"prefix":"rack1-","uses":40,"valid_for":"7d","power":{"kind":"ipmi","user":"operator"}}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

// consoleOf accepts connections to n1's console and hands them over.
func (f *fake) consoleOf(speak func(io.Reader, io.Writer)) {
	f.mux.HandleFunc("GET /v1/nodes/n1/console", func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			f.t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nearmetal-tunnel\r\n\r\n")
		speak(buffered, conn)
	})
}

func TestTheConsoleEndsAtAnEscapeAtTheBeginningOfALine(t *testing.T) {
	for typed, want := range map[string]string{
		"root\r~.never":          "root\r",
		"~~x\r~y~.\n~.":          "~x\r~y~.\n",
		"~":                      "",
		"no escape~.\rat all\r~": "no escape~.\rat all\r",
	} {
		f := newFake(t)
		heard := make(chan string, 1)
		f.consoleOf(func(r io.Reader, w io.Writer) {
			fmt.Fprint(w, "login: ")
			all, _ := io.ReadAll(r)
			heard <- string(all)
		})
		s := f.shell()
		s.in = strings.NewReader(typed)
		has(t, s.run(t, "node", "console", "n1"), 0, "connected to the console of n1")
		if got := <-heard; got != want {
			t.Errorf("typed %q: the console heard %q, want %q", typed, got, want)
		}
	}
}

func TestTheConsoleShowsWhatIsSaidAndEndsWithIt(t *testing.T) {
	f := newFake(t)
	f.consoleOf(func(r io.Reader, w io.Writer) {
		line, _ := bufio.NewReader(r).ReadString('\r')
		fmt.Fprintf(w, "you said %q\r\n", line)
	})
	s := f.shell()
	s.in = strings.NewReader("hello\r")
	has(t, s.run(t, "node", "console", "n1"), 0, `you said "hello\r"`)

	f.fixed("GET /v1/nodes/n1/console-login", api.ConsoleLogin{User: "root", Password: "correct horse"})
	has(t, f.shell().run(t, "node", "console", "n1", "--password"), 0, "User:      root\n", "Password:  correct horse\n")
	has(t, f.shell().run(t, "node", "console", "n2"), cli.ExitNotFound)
}

// TestARecordedServerIsShown shows a machine whose hardware was recorded from a real server's files.
func TestARecordedServerIsShown(t *testing.T) {
	data, err := os.ReadFile("testdata/hardware.json")
	if err != nil {
		t.Fatal(err)
	}
	n := booted(machineNode("n1", api.MachineBooting), 4)
	n.Machine.Hardware = &api.Hardware{}
	if err := json.Unmarshal(data, n.Machine.Hardware); err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	f.fixed("GET /v1/nodes/n1", n)
	golden(t, "machine", f.shell().run(t, "node", "show", "n1").out)
}

func TestWhatIsSetOfAMachineGoesOverWhatItHas(t *testing.T) {
	f := newFake(t)
	n := machineNode("n1", api.MachineOff)
	n.Machine.Spec = api.MachineSpec{
		MACs: []string{"52:54:00:00:00:01"}, Power: api.PowerControl{Kind: api.PowerIPMI, Address: "10.9.1.1", User: "admin"}, Console: "ipmi-sol",
	}
	f.fixed("GET /v1/nodes/n1", n)
	f.fixed("PATCH /v1/nodes/n1", n)
	r := f.shell().run(t, "node", "set", "n1", "--bmc", "10.9.1.2", "--labels", "rack=r2")
	has(t, r, 0, "node n1 is changed")
	requests := f.requests()
	want := `PATCH /v1/nodes/n1 {"spec":{"labels":{"rack":"r2"},"power":{"address":"10.9.1.2"}}}`
	if got := requests[len(requests)-1]; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	withGPUs := machineNode("n1", api.MachineOff)
	withGPUs.Machine.Spec = n.Machine.Spec
	withGPUs.Machine.Spec.Passthrough = &api.MachinePassthrough{GPUs: []string{"H200"}}
	f.fixed("GET /v1/nodes/n2", withGPUs)
	for _, c := range []struct{ node, flag, want string }{
		{"n1", "--passthrough-gpus=all", `{"spec":{"passthrough":{"gpus":["all"]}}}`},
		{"n2", "--passthrough-clearing=reset", `{"spec":{"passthrough":{"gpus":["H200"],"clearing":"reset"}}}`},
		{"n2", "--passthrough-gpus=", `{"spec":{"passthrough":null}}`},
	} {
		has(t, f.shell().run(t, "node", "set", c.node, c.flag), 0, "node n1 is changed")
		requests := f.requests()
		if got := requests[len(requests)-1]; got != "PATCH /v1/nodes/n1 "+c.want {
			t.Errorf("%s: asked %s, want %s", c.flag, got, c.want)
		}
	}
	has(t, f.shell().run(t, "node", "set", "n2", "--passthrough-clearing", "twice"), 2, "write proven or reset")
	has(t, f.shell().run(t, "node", "set", "n1", "--passthrough-clearing", "reset"), 2, "name the GPUs, with --passthrough-gpus")
	has(t, f.shell().run(t, "node", "set", "n1"), 2, "say what to change")
	has(t, f.shell().run(t, "node", "set", "n1", "--console", "serial"), 2, "--console")
}
