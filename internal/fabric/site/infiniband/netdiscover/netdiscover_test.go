package netdiscover

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recorded was written by ibnetdiscover 44.0 on a fabric of ibsim 0.10.
const recorded = `#
# Topology file: generated on Thu Nov 26 04:07:45 2026
#
# Initiated from node 0002c90000200010 port 0002c90000200011

vendid=0x0
devid=0x0
sysimgguid=0x2c90000100020
switchguid=0x2c90000100020(2c90000100020)
Switch	36 "S-0002c90000100020"		# "l3" base port 0 lid 91 lmc 0
[5]	"H-0002c90000200280"[1](2c90000200281) 		# "n41" lid 364 4xSDR
[19]	"S-0002c90000100240"[3]		# "t1" lid 183 4xSDR

vendid=0x0
devid=0x0
sysimgguid=0x2c90000200280
caguid=0x2c90000200280
Ca	1 "H-0002c90000200280"		# "n41"
[1](2c90000200281) 	"S-0002c90000100020"[5]		# lid 364 lmc 0 "l3" lid 91 4xSDR
`

func TestWhatIbnetdiscoverWritesIsRead(t *testing.T) {
	got, err := Parse(strings.NewReader(recorded))
	want := []Port{{GUID: 0x0002c90000200281, Node: "n41", LID: 364, Switch: SwitchPort{GUID: 0x0002c90000100020, LID: 91, Port: 5, Name: "l3"}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAHostsDescriptionIsNoLineOfTheFabric(t *testing.T) {
	evil := strings.ReplaceAll(recorded, `# "n41"`, `# "n41" lid 7 lmc 0 "x" lid 9 4xSDR"`)
	got, err := Parse(strings.NewReader(evil))
	if err != nil || len(got) != 1 || got[0].LID != 364 || got[0].Switch.LID != 91 {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(recorded)
	f.Fuzz(func(t *testing.T, text string) {
		ports, _ := Parse(strings.NewReader(text))
		for _, p := range ports {
			if p.LID < 0 || p.LID > 0xffff || p.Switch.Port > 255 {
				t.Errorf("%q: %+v", text, p)
			}
		}
	})
}
