package inspection

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
)

// readWatchdog reads which watchdog the machine has (Documentation/ABI/testing/sysfs-class-watchdog). One that programs drive is none: it ends with the kernel.
func readWatchdog(_ context.Context, s source) (func(*api.Hardware), []string) {
	found := ""
	for _, name := range s.tree.Names("sys/class/watchdog") {
		if text := s.tree.Text("sys/class/watchdog/" + name + "/identity"); text != "" && text != "Software Watchdog" && found == "" {
			found = text
		}
	}
	return func(hw *api.Hardware) { hw.Watchdog = found }, nil
}
