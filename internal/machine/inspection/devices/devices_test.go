package devices

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

func TestANICWithoutWakeOnLANSaysSo(t *testing.T) {
	t.Parallel()
	if got, err := (Machine{}).WakeOn("lo"); got != "" || err != nil {
		t.Errorf("WakeOn: got %q, %v", got, err)
	}
	if err := (Machine{}).ArmWakeOnLAN("lo"); !errors.Is(err, ErrNoWakeOnLAN) {
		t.Errorf("ArmWakeOnLAN: got %v, want ErrNoWakeOnLAN", err)
	}
}

func TestALinkIsTakenUpOnce(t *testing.T) {
	t.Parallel()
	needs.Root(t, "makes a network namespace")
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error {
		if out, err := exec.CommandContext(t.Context(), "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1").CombinedOutput(); err != nil {
			t.Fatalf("make a cable: %v: %s", err, out)
		}
		for range 2 {
			if err := (Machine{}).RaiseLink("eth0"); err != nil {
				return err
			}
		}
		link, err := net.InterfaceByName("eth0")
		if err == nil && link.Flags&net.FlagUp == 0 {
			t.Error("eth0 is down")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := (Machine{}).RaiseLink("no-such-nic"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no such NIC: got %v", err)
	}
}

func TestTheSMARTStatusIsReadFromTheSenseData(t *testing.T) {
	t.Parallel()
	sense := func(mid, high byte) []byte {
		s := make([]byte, 32)
		s[0], s[8], s[9], s[17], s[19] = 0x72, 0x09, 0x0c, mid, high
		return s
	}
	for _, tt := range []struct {
		name  string
		sense []byte
		want  Wear
	}{
		{"well", sense(0x4f, 0xc2), Wear{Known: true}},
		{"failing", sense(0xf4, 0x2c), Wear{Known: true, Failing: "its SMART status predicts its failure"}},
		{"neither", sense(0, 0), Wear{}},
		{"no descriptor", make([]byte, 32), Wear{}},
		{"too short", sense(0x4f, 0xc2)[:16], Wear{}},
	} {
		if got := ataStatus(tt.sense); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestTheBMCAnswers(t *testing.T) {
	file, err := openIPMI()
	if err != nil {
		needs.Hardware(t, "no BMC answers through the modules ipmi_si and ipmi_devintf: %v", err)
	}
	defer file.Close()
	data, err := ipmi(t.Context(), file, 0x06, 0x01, nil) // Get Device ID (IPMI 2.0, section 20.1)
	if err != nil || len(data) < 11 {
		t.Errorf("Get Device ID: got % x, %v", data, err)
	}
	address, err := Machine{}.BMCAddress(t.Context())
	if err != nil || strings.Count(address, ".") != 3 && address != "" {
		t.Errorf("BMCAddress: got %q, %v", address, err)
	}
	t.Logf("device % x, address %q", data, address)
}
