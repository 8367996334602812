package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// portClasses are the classes of devices whose parts are handed out as ports.
func portClasses() []string { return []string{"nic", "hca"} }

// CheckDevices refuses devices of classes that members of a stack don't get, and adapters that no port is on: a member gets a part of an adapter as its
// port, and nothing else. besides are the classes that the stack hands out besides adapters.
func CheckDevices(a *api.Assignment, besides ...string) error {
	for _, claim := range a.Devices {
		if slices.Contains(besides, claim.Class) {
			continue
		}
		if classes := append(portClasses(), besides...); !slices.Contains(classes, claim.Class) {
			last := len(classes) - 1
			return fmt.Errorf("it holds device %s of class %q, and members on its stack get devices of the classes %s and %s only",
				claim.Device, claim.Class, strings.Join(classes[:last], ", "), classes[last])
		}
		if !slices.ContainsFunc(a.Ports, func(p api.PortClaim) bool { return p.Device == claim.Device && p.Part == claim.Part }) {
			return fmt.Errorf("it holds %s, and none of its ports is on that", fabric.Function{Device: claim.Device, Part: claim.Part})
		}
	}
	for n := range a.Ports {
		p := &a.Ports[n]
		if !fabric.PortOf(a, n).OnFunction() {
			continue
		}
		if !slices.ContainsFunc(a.Devices, func(c api.DeviceClaim) bool { return c.Device == p.Device && c.Part == p.Part }) {
			return fmt.Errorf("its port %d is on %s, which it does not hold", n, fabric.Function{Device: p.Device, Part: p.Part})
		}
	}
	return nil
}
