package switches_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/switches"
)

func TestEachKindIsMadeAndNoOther(t *testing.T) {
	t.Parallel()
	open := switches.Opener(switches.Options{})
	for kind, address := range map[api.PowerKind]string{
		api.PowerWakeOnLAN: "", api.PowerIPMI: "10.0.0.7", api.PowerRedfish: "https://10.0.0.7", api.PowerManual: "",
	} {
		s, err := open(power.Target{Name: "m1", Control: api.PowerControl{Kind: kind, Address: address}, MACs: []string{"52:54:00:12:34:56"}})
		if err != nil || s.Kind() != kind {
			t.Errorf("%s: got %v, %v", kind, s, err)
		}
	}
	for _, kind := range []api.PowerKind{api.PowerIPMI, api.PowerRedfish, api.PowerWakeOnLAN, "", "pdu"} {
		if s, err := open(power.Target{Name: "m1", Control: api.PowerControl{Kind: kind}}); err == nil || s != nil {
			t.Errorf("%q without what it needs: got %v, %v", kind, s, err)
		}
	}
}
