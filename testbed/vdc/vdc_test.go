package vdc

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/redfish"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// architectures are what a kind of firmware says in DHCP option 93 (RFC 4578, section 2.1; 7 is what x86-64 UEFI says in practice).
var architectures = map[api.Firmware]uint16{api.FirmwareBIOS: 0, api.FirmwareUEFI: 7}

func TestMachinesPowerOnByEachKindOfPowerControlAndAskForAnAddress(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	f := newField(t)
	for _, kind := range []struct {
		name    string
		on, off func(Machine) error
	}{
		{"redfish", f.redfish(redfish.OnResetType), f.redfish(redfish.ForceOffResetType)},
		{"ipmi", f.chassis("on"), f.chassis("off")},
		{"wol", f.magic, func(m Machine) error { return f.dc.CutPower(m.Name) }},
	} {
		for _, m := range f.dc.Machines() {
			f.power(m, api.PowerOff)
			since := time.Now()
			if err := kind.on(m); err != nil {
				t.Fatalf("%s: %s on: %v", m.Name, kind.name, err)
			}
			asked := time.Since(since)
			f.eventually(m.Name+" on", func() bool { state, _ := f.dc.Power(m.Name); return state == api.PowerOn })
			first := f.firstRequest(m, since)
			arch := first.packet.ClientArch()
			if len(arch) != 1 || uint16(arch[0]) != architectures[m.Firmware] || first.packet.MessageType() != dhcpv4.MessageTypeDiscover {
				t.Errorf("%s: %s: option 93 is %v, want %d", m.Name, kind.name, arch, architectures[m.Firmware])
			}
			t.Logf("measured: %s (%s) by %s: order %.2f s, first DHCP after %.2f s", m.Name, m.Firmware, kind.name, asked.Seconds(), first.at.Sub(since).Seconds())
			if err := kind.off(m); err != nil {
				t.Fatalf("%s: %s off: %v", m.Name, kind.name, err)
			}
			f.power(m, api.PowerOff)
		}
	}
	for _, m := range f.dc.Machines() {
		if r, i, err := f.dc.BMCSessions(m.Name); r != 0 || i != 0 || err != nil {
			t.Errorf("%s: %d Redfish and %d IPMI sessions stayed open, %v", m.Name, r, i, err)
		}
	}
}

// service opens a session of gofish.
func (f *field) service(m Machine) (*gofish.APIClient, error) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = f.op.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	return gofish.ConnectContext(f.t.Context(), gofish.ClientConfig{Endpoint: m.RedfishURL, Username: m.User, Password: m.Password, HTTPClient: client})
}

// redfish resets the system that a BMC has, in a session of its own.
func (f *field) redfish(reset redfish.ResetType) func(Machine) error {
	return func(m Machine) error {
		client, err := f.service(m)
		if err != nil {
			return err
		}
		defer client.Logout()
		systems, err := client.Service.Systems()
		if err != nil {
			return err
		}
		if len(systems) != 1 || !strings.EqualFold(systems[0].UUID, m.UUID) {
			return fmt.Errorf("systems are %v, want %s", systems, m.UUID)
		}
		return systems[0].Reset(reset)
	}
}

func (f *field) chassis(order string) func(Machine) error {
	return func(m Machine) error {
		output, err := f.ipmi(m, "10", "chassis", "power", order)
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	}
}

// magic sends a magic packet by UDP broadcast from an address on the cable.
func (f *field) magic(m Machine) error {
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		return err
	}
	if _, err := f.run("sh", "-c", "ip addr add 10.97.0.1/24 dev nmprov0 2>/dev/null; true"); err != nil {
		return err
	}
	payload := slices.Concat(slices.Repeat([]byte{0xff}, 6), slices.Repeat(mac, 16))
	return f.op.Do(func() error {
		conn, err := net.Dial("udp", "10.97.0.255:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(payload)
		return err
	})
}

func TestFaultsOfMachinesAndNetwork(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	f := newField(t)
	bios, err := f.dc.Machine("bios1")
	must(t, err)

	t.Log("hung firmware: the BMC says on, nothing is heard until it goes on")
	must(t, f.dc.HangFirmware(bios.Name, true))
	since := time.Now()
	must(t, f.dc.PressPower(bios.Name))
	f.eventually("a halted machine", func() bool { _, halted, _ := f.dc.virt.state(bios.Name); return halted })
	if output, err := f.ipmi(bios, "5", "chassis", "power", "status"); err != nil || !strings.Contains(output, "is on") {
		t.Errorf("the BMC of a hung machine: %s, %v", output, err)
	}
	if !f.silentSince(bios, since) {
		t.Error("a hung machine asked for an address")
	}
	must(t, f.dc.HangFirmware(bios.Name, false))
	f.firstRequest(bios, since)
	f.off(bios)

	t.Log("a NIC without link: nothing is heard until it is plugged in, no magic packet wakes the machine")
	must(t, f.dc.SetNIC(bios.Name, Provisioning, false))
	must(t, f.magic(bios))
	f.asksOnlyAfter(bios, func() error { return f.dc.SetNIC(bios.Name, Provisioning, true) })

	t.Log("all frames lost: nothing is heard until the loss ends")
	must(t, f.dc.SetLoss(1))
	f.asksOnlyAfter(bios, func() error { return f.dc.SetLoss(0) })

	must(t, f.dc.SetLoss(0.3)) // nft takes a share too
	t.Log("power loss")
	must(t, f.dc.PressPower(bios.Name))
	must(t, f.dc.CutPower(bios.Name))
	if output, err := f.ipmi(bios, "5", "chassis", "power", "status"); err != nil || !strings.Contains(output, "is off") {
		t.Errorf("the BMC of a machine without power: %s, %v", output, err)
	}
}

// asksOnlyAfter starts a machine that is off, and whose network is dead until repair.
func (f *field) asksOnlyAfter(m Machine, repair func() error) {
	f.t.Helper()
	f.power(m, api.PowerOff)
	must(f.t, os.Truncate(m.ConsoleLog, 0))
	since := time.Now()
	must(f.t, f.dc.PressPower(m.Name))
	f.printed(m, "Configuring (net0") // it asks from now on
	if !f.silentSince(m, since) {
		f.t.Errorf("%s asked for an address over a dead network", m.Name)
	}
	must(f.t, repair())
	f.firstRequest(m, since)
	f.off(m)
}

func TestFaultsOfIPMI(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	f := newField(t)
	m, err := f.dc.Machine("uefi1")
	must(t, err)
	status := func() (string, error) { return f.ipmi(m, "1", "chassis", "power", "status") }
	for _, test := range []struct {
		fault BMCFault
		want  string
		ok    bool
	}{
		{BMCFault{Kind: FaultSaysOn}, "Power is on", true},
		{BMCFault{Kind: FaultSaysOff}, "Power is off", true},
		{BMCFault{Kind: FaultUnknown}, "Unspecified error", false},
		{BMCFault{Kind: FaultGarbage}, "Unable to establish", false},
		{BMCFault{Kind: FaultSilent}, "Unable to establish", false},
		{BMCFault{Kind: FaultRefuse}, "unauthorized name", false},
		{BMCFault{Kind: FaultSlow, Delay: 100 * time.Millisecond}, "Power is off", true},
		{BMCFault{}, "Power is off", true},
	} {
		must(t, f.dc.SetBMCFault(m.Name, test.fault))
		began := time.Now()
		output, err := status()
		if (err == nil) != test.ok || !strings.Contains(output, test.want) {
			t.Errorf("fault %q: %s, %v; want %q", test.fault.Kind, output, err, test.want)
		}
		if took := time.Since(began); test.fault.Kind == FaultSlow && took < test.fault.Delay {
			t.Errorf("a slow BMC answered after %v", took)
		}
	}

	t.Log("sessions: one is held open, a second is refused, the first is closed")
	must(t, f.dc.SetBMCFault(m.Name, BMCFault{Kind: FaultSessions, Limit: 1}))
	holder, err := ipmi.NewClient(m.bmc.String(), ipmiPort, m.User, m.Password)
	must(t, err)
	must(t, f.op.Do(func() error { return holder.Connect(t.Context()) }))
	f.eventually("an open session", func() bool { _, open, _ := f.dc.BMCSessions(m.Name); return open == 1 })
	if output, err := status(); err == nil || !strings.Contains(output, "insufficient resources") {
		t.Errorf("a second session: %s, %v", output, err)
	}
	must(t, holder.Close(t.Context()))
	if output, err := status(); err != nil {
		t.Errorf("after the first session was closed: %s, %v", output, err)
	}
}

func TestAFirmwareThatRedfishToldAURIBootsFromIt(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	f := newField(t)
	m, err := f.dc.Machine("uefi1")
	must(t, err)
	const patch = `{"Boot": {"BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": "http://10.97.0.1/boot.efi"}}`
	output, err := f.run("curl", "-sSf", "-u", m.User+":"+m.Password, "-X", "PATCH", "-H", "Content-Type: application/json", "-d", patch,
		m.RedfishURL+"/redfish/v1/Systems/"+m.UUID)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	since := time.Now()
	must(t, f.redfish(redfish.OnResetType)(m))
	first := f.firstRequest(m, since)
	// 16: x86-64 UEFI HTTP boot (IANA, Processor Architecture Types).
	if class := first.packet.ClassIdentifier(); !strings.HasPrefix(class, "HTTPClient:Arch:00016") {
		t.Errorf("the first DHCP request is of %q", class)
	}
	t.Logf("measured: UEFI HTTP boot: first DHCP after %.2f s", first.at.Sub(since).Seconds())
	f.off(m)
}

func TestAStarterThatIsKilledLeavesNothing(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	op := newOperator(t)
	for _, test := range []struct {
		name string
		// keeper is killed too, so that only the files stay, until someone takes the data centre down.
		keeper bool
	}{{"alone", false}, {"with its keeper", true}} {
		starter, keeper := startElsewhere(t, op.Path())
		if !slices.Contains(links(t, op), "nmprov0") {
			t.Fatalf("%s: no cable: %v", test.name, links(t, op))
		}
		if test.keeper {
			must(t, syscall.Kill(keeper, syscall.SIGSTOP)) // it must not clean up in between
		}
		must(t, starter.Process.Kill())
		_ = starter.Wait()
		if test.keeper {
			must(t, syscall.Kill(keeper, syscall.SIGKILL))
			_, err := os.Stat(Dir(testName))
			must(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if test.keeper {
			must(t, TakeDown(ctx, testName))
		}
		must(t, until(ctx, nil, func() error {
			if _, err := os.Stat(Dir(testName)); !os.IsNotExist(err) {
				return fmt.Errorf("%s: %s is still there", test.name, Dir(testName))
			}
			if left := links(t, op); len(left) != 1 {
				return fmt.Errorf("%s: links %v are still there", test.name, left)
			}
			return nil
		}))
		_, _ = syscall.Wait4(keeper, nil, 0, nil) // it fell to this process
	}
}

// startElsewhere starts a data centre in a process of its own, which tells the keeper's PID and waits to be killed. A machine is on.
func startElsewhere(t *testing.T, namespace string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStarter$", "-test.v")
	cmd.Env = append(os.Environ(), "NEARMETAL_VDC_STARTER="+base64.StdEncoding.EncodeToString([]byte(namespace)))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if pid, ok := strings.CutPrefix(lines.Text(), "keeper "); ok {
			keeper, err := strconv.Atoi(pid)
			must(t, err)
			return cmd, keeper
		}
	}
	t.Fatal("the starter ended")
	return nil, 0
}

// TestStarter is what startElsewhere runs.
func TestStarter(t *testing.T) {
	needs.Child(t, "NEARMETAL_VDC_STARTER")
	namespace, err := base64.StdEncoding.DecodeString(os.Getenv("NEARMETAL_VDC_STARTER"))
	must(t, err)
	dc, err := Start(context.Background(), testConfig(string(namespace)))
	must(t, err)
	must(t, dc.PressPower("bios1"))
	fmt.Printf("keeper %d\n", dc.keeper.pid)
	select {}
}

func TestSeveralDataCentresAtOnceAndNoTwoOfAName(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	f := newField(t)
	if _, err := Start(t.Context(), testConfig(f.op.Path())); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("a second data centre of the name: %v", err)
	}
	f.power(f.dc.Machines()[0], api.PowerOff) // the first one lives
	cfg := testConfig(f.op.Path())
	cfg.Name = testName[:4] + "2"
	if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "link of that name") {
		t.Errorf("a second cable of the name: %v", err)
	}
	cfg.ProvisioningLink, cfg.BMCLink = "nmprov1", "nmbmc1"
	second, err := Start(t.Context(), cfg)
	must(t, err)
	must(t, second.PressPower("bios1"))
	f.power(f.dc.Machines()[0], api.PowerOff)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, TakeDown(ctx, cfg.Name))
	must(t, second.Close())
	if _, err := os.Stat(Dir(cfg.Name)); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", Dir(cfg.Name), err)
	}
}
