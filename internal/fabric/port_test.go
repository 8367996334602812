package fabric

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAPlaceIsRefusedUnlessItIsWrittenAsItsKindSays(t *testing.T) {
	for _, tt := range []struct {
		place Place
		want  string // part of the error, "" for none
	}{
		{Namespace("/proc/7/ns/net"), ""},
		{Namespace(""), "absolute path"},
		{Namespace("proc/7/ns/net"), "absolute path"},
		{Namespace("/proc/7\x00/ns/net"), "absolute path"},
		{Place{api.PortTAP, "nmt0123456789"}, ""},
		{Place{api.PortTAP, ""}, "name of a device"},
		{Place{api.PortTAP, "../tap0"}, "name of a device"},
		{Place{api.PortTAP, "a-name-of-sixteen"}, "name of a device"},
		{Place{api.PortMACVTAP, "macvtap0"}, ""},
		{Place{api.PortMACVTAP, "macvtap 0"}, "name of a device"},
		{Place{api.PortVF, "0000:3b:00.2"}, ""},
		{Place{api.PortVF, "10000:e1:1f.7"}, ""},
		{Place{api.PortVF, "3b:00.2"}, "PCI address"},
		{Place{api.PortPF, "0000:3b:00.8"}, "PCI address"},
		{Place{api.PortPF, "enp59s0"}, "PCI address"},
		{Place{"", "/proc/7/ns/net"}, "the kinds are"},
		{Place{"wire", "1"}, "the kinds are"},
	} {
		err := tt.place.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q at %q: got %v, want an error with %q", tt.place.Kind, tt.place.At, err, tt.want)
		}
	}
}

func TestEveryKindOfPortHasAPlaceThatIsValid(t *testing.T) {
	for _, kind := range PortKinds() {
		valid := false
		for _, at := range []string{"/proc/7/ns/net", "tap0", "0000:3b:00.2"} {
			valid = valid || Place{kind, at}.Validate() == nil
		}
		if !valid {
			t.Errorf("no place of kind %s is valid", kind)
		}
	}
}
