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
		{Place{Kind: api.PortTAP, At: "nmt0123456789"}, ""},
		{Place{Kind: api.PortTAP, At: ""}, "name of a device"},
		{Place{Kind: api.PortTAP, At: "../tap0"}, "name of a device"},
		{Place{Kind: api.PortTAP, At: "a-name-of-sixteen"}, "name of a device"},
		{Place{Kind: api.PortMACVTAP, At: "macvtap0"}, ""},
		{Place{Kind: api.PortMACVTAP, At: "macvtap 0"}, "name of a device"},
		{Place{Kind: api.PortVF, At: "0000:3b:00.2"}, ""},
		{Place{Kind: api.PortVF, At: "10000:e1:1f.7"}, ""},
		{Place{Kind: api.PortVF, At: "3b:00.2"}, "PCI address"},
		{Place{Kind: api.PortPF, At: "0000:3b:00.8"}, "PCI address"},
		{Place{Kind: api.PortPF, At: "enp59s0"}, "PCI address"},
		{Place{Kind: "", At: "/proc/7/ns/net"}, "the kinds are"},
		{Place{Kind: "wire", At: "1"}, "the kinds are"},
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
			valid = valid || Place{Kind: kind, At: at}.Validate() == nil
		}
		if !valid {
			t.Errorf("no place of kind %s is valid", kind)
		}
	}
}
