package vdc

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheBMCThatAMachineReachesControlsItsPower(t *testing.T) {
	needTestbed(t)
	f := fieldOf(t, func(c *Config) {
		c.Name = "kcstest"
		c.Machines = []MachineConfig{{Name: "k1", Firmware: api.FirmwareBIOS, MemoryMiB: 512, HostInterface: HostClosable}}
	})
	m := f.dc.Machines()[0]
	t.Cleanup(func() {
		log, _ := os.ReadFile(filepath.Join(f.dc.Folder(), "log", "kcs-"+m.Name+".log"))
		t.Logf("ipmi_sim said: %s", log)
	})
	f.power(m, api.PowerOff)
	began := time.Now()
	if err := f.chassis("on")(m); err != nil {
		t.Fatal(err)
	}
	f.eventually("k1 on", func() bool { state, _ := f.dc.Power(m.Name); return state == api.PowerOn })
	t.Logf("measured: on after %.1f s", time.Since(began).Seconds())
	if err := f.chassis("off")(m); err != nil {
		t.Fatal(err)
	}
	f.power(m, api.PowerOff)
}
