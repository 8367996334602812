package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// TestMachineFiles reads every testdata/machines/NAME.good.yaml and NAME.bad.yaml: the normal form, or the message, stands in NAME...want.
func TestMachineFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/machines/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			machines, err := manifest.DecodeMachines(data, manifest.YAML)
			if (err == nil) != strings.Contains(file, ".good.") {
				t.Fatalf("read %s: error %v, but the file's name says otherwise", file, err)
			}
			got := ""
			if err != nil {
				got = err.Error() + "\n"
			} else {
				text, err := json.MarshalIndent(machines, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got = string(text) + "\n"
			}
			golden(t, file+".want", got)
		})
	}
}

// FuzzMachines: whatever a file says, it is refused in words or its normal form is normal.
func FuzzMachines(f *testing.F) {
	files, err := filepath.Glob("testdata/machines/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		machines, err := manifest.DecodeMachines(data, manifest.Detect(data))
		var invalid *manifest.Invalid
		if err != nil && !errors.As(err, &invalid) {
			t.Fatalf("%v is no *Invalid", err)
		}
		if err != nil {
			return
		}
		for _, m := range machines {
			again, err := manifest.NormalizeMachine(m, nil)
			if err != nil {
				t.Fatalf("the normal form %+v is refused: %v", m, err)
			}
			if diff := cmp.Diff(m, again); diff != "" {
				t.Fatalf("the normal form has another normal form: %s", diff)
			}
		}
	})
}

func TestAnEnrolmentTokenHasDefaultsAndLimits(t *testing.T) {
	got, err := manifest.NormalizeEnrollToken(api.EnrollTokenRequest{Prefix: "rack1-"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := api.EnrollTokenRequest{Prefix: "rack1-", Uses: 1, ValidFor: api.Duration(24 * time.Hour), Power: api.PowerControl{Kind: api.PowerManual}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A BMC's address may be left to inspection.
	if _, err := manifest.NormalizeEnrollToken(api.EnrollTokenRequest{
		Prefix: "n", Power: api.PowerControl{Kind: api.PowerIPMI, User: "root"}, Password: "secret",
	}, nil); err != nil {
		t.Errorf("without an address: %v", err)
	}
	for want, req := range map[string]api.EnrollTokenRequest{
		"prefix: is missing":         {},
		`makes names like "_1"`:      {Prefix: "_"},
		"uses: -1 is too small":      {Prefix: "n", Uses: -1},
		"valid_for: 1s is too short": {Prefix: "n", ValidFor: api.Duration(time.Second)},
		"has no BMC":                 {Prefix: "n", Password: "secret"},
	} {
		if _, err := manifest.NormalizeEnrollToken(req, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", req, err, want)
		}
	}
}

func TestPowerRequestsMeanSomething(t *testing.T) {
	for want, req := range map[string]api.NodePowerRequest{
		"":                        {Action: api.PowerActionOff, Force: true},
		"action: is missing":      {},
		`did you mean "cycle"?`:   {Action: "cycel"},
		"environment: is missing": {Action: api.PowerActionOn},
		"boots nothing":           {Action: api.PowerActionOff, Environment: "e"},
		"is not a DNS label":      {Action: api.PowerActionCycle, Environment: "E"},
	} {
		err := manifest.CheckPower(req, nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", req, err, want)
		}
	}
}

func TestAFileHasRoomForAsManyMachinesAsItMayList(t *testing.T) {
	var file strings.Builder
	file.WriteString("power: {kind: ipmi, user: operator}\npassword: open sesame\nmachines:\n")
	for i := range 10_000 {
		fmt.Fprintf(&file, "- name: rack-with-a-long-name-%d\n  spec:\n    macs: [\"52:54:00:00:%02x:%02x\", \"52:54:00:01:%02x:%02x\"]\n    power: {address: \"10.9.%d.%d\"}\n",
			i, i/256, i%256, i/256, i%256, i/256, i%256)
		fmt.Fprintf(&file, "    console: tcp://10.9.1.250:%d\n    labels: {rack: r%d, row: \"%d\"}\n", 1000+i, i/40, i/400)
	}
	machines, err := manifest.DecodeMachines([]byte(file.String()), manifest.YAML)
	if err != nil || len(machines) != 10_000 {
		t.Errorf("read %d machines of %d bytes: %v", len(machines), file.Len(), err)
	}
}
