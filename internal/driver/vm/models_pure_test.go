package vm

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestOnlyModelsOfFixedMeaningThatLackNothingAreOffered(t *testing.T) {
	t.Parallel()
	got, err := readModels(`{"QMP": {"version": {}, "capabilities": ["oob"]}}
{"return": {}}
{"return": [
 {"name": "max", "unavailable-features": [], "migration-safe": false},
 {"name": "Westmere", "unavailable-features": [], "migration-safe": true},
 {"name": "Westmere-v1", "unavailable-features": [], "migration-safe": true},
 {"name": "486", "unavailable-features": [], "migration-safe": true},
 {"name": "Penryn", "unavailable-features": [], "migration-safe": false},
 {"name": "Haswell", "unavailable-features": ["pcid", "rtm"], "migration-safe": true},
 {"name": "Nehalem", "migration-safe": true}]}
{"return": {}}
{"event": "SHUTDOWN"}`)
	if diff := cmp.Diff([]string{"Nehalem", "Westmere"}, got); diff != "" || err != nil {
		t.Errorf("models (-want +got):\n%s%v", diff, err)
	}
}

func TestAQEMUThatListsNoModelsIsAnError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "does not list them", `{"QMP": {}}{"return": {}}`: "does not list them", `{"return"`: "unexpected EOF",
		`{"error": {"class": "CommandNotFound", "desc": "no such command"}}`: "no such command",
	} {
		if _, err := readModels(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestAMemberDoesNotStartWithACPUModelThatItsNodeLacks(t *testing.T) {
	t.Parallel()
	needs.Program(t, "qemu-system-x86_64")
	d := &Driver{cfg: Config{Accelerate: func() error { return errors.New("tests emulate") }}}
	if err := d.checkModel(t.Context(), ""); err != nil {
		t.Error(err)
	}
	// QEMU 7.2 emulates no transactional memory.
	err := d.checkModel(t.Context(), "Haswell")
	if err == nil || !strings.Contains(err.Error(), `CPU model "Haswell" can't be carried on this node, which has:`) {
		t.Errorf("got %v", err)
	}
	if err := d.checkModel(t.Context(), "Westmere"); err != nil {
		t.Error(err)
	}
}

func TestAMachineWithACPUModelGoesOnOnOtherProcessorsOfItsVendor(t *testing.T) {
	t.Parallel()
	older := &processor{Vendor: "GenuineIntel", Family: "6", Model: "63", Flags: []string{"avx2"}}
	newer := &processor{Vendor: "GenuineIntel", Family: "6", Model: "85", Flags: []string{"avx2", "avx512f"}}
	for _, tt := range []struct {
		name       string
		model      string
		there      *processor
		thereModel string
		fits       bool
	}{
		{"a named model on another processor", "Haswell", newer, "Haswell", true},
		{"the host's own on another processor", "", newer, "", false},
		{"another named model", "Haswell", newer, "Broadwell", false},
		{"a named model on another vendor's", "Haswell", &processor{Vendor: "AuthenticAMD"}, "Haswell", false},
	} {
		err := older.seenAs(tt.model).difference(*tt.there.seenAs(tt.thereModel))
		if (err == nil) != tt.fits {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
