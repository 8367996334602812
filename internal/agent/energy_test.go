package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
)

// sourcesFile writes a file of --energy-sources.
func sourcesFile(t *testing.T, mode os.FileMode, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "energy.yaml")
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	return file
}

const goodSources = `
outlets:
- address: pdu1.example:161
  oid: 1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.4
  scale: 0.1
  community: watts
- address: pdu2.example
  oid: 1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.4
  user: reader
  auth_password: at-least-8-characters
  privacy_password: at-least-8-characters
command: [/usr/local/bin/node-power, --meter, "3"]
`

func TestSourcesOfEnergyAreReadFromTheirFile(t *testing.T) {
	t.Parallel()
	f, err := readEnergyFile(sourcesFile(t, 0o600, goodSources))
	if err != nil || len(f.Outlets) != 2 || f.Outlets[0].Scale != 0.1 || f.Outlets[1].PrivacyPassword == "" || len(f.Command) != 3 {
		t.Errorf("got %+v, %v", f, err)
	}
	s, err := openEnergy(config.Agent{RAPLTree: t.TempDir(), EnergyFile: sourcesFile(t, 0o600, goodSources)})
	if err != nil {
		t.Fatal(err)
	}
	sample, err := s.Sample(t.Context(), nil)
	if err != nil || len(sample.Counters) != 3 {
		t.Errorf("the sample has %+v, %v; want RAPL, the outlets and the program", sample.Counters, err)
	}
}

func TestAFileOfSourcesThatIsWrongIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		mode os.FileMode
		text string
		says string
	}{
		{"readable by others", 0o644, goodSources, "chmod 600"},
		{"no source", 0o600, "{}", "names no source"},
		{"an unknown field", 0o600, "outlet: []\n", "unknown field"},
		{"no YAML", 0o600, "outlets: [", "energy.yaml"},
		{"a program without its path", 0o600, "command: [power]\n", "absolute path"},
		{"an outlet without credentials", 0o600, "outlets:\n- address: pdu1\n  oid: 1.3.6.1\n", "community"},
		{"too many outlets", 0o600, "outlets:\n" + strings.Repeat("- {address: pdu1, oid: 1.3.6.1, community: watts}\n", 9), "at most"},
	} {
		if _, err := readEnergyFile(sourcesFile(t, c.mode, c.text)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.says)
		}
	}
	if _, err := openEnergy(config.Agent{EnergyFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there is not refused")
	}
}

func TestNodesThatShareAMachineDoNotReadItsCountersUnasked(t *testing.T) {
	t.Parallel()
	tree := t.TempDir()
	for _, c := range []struct {
		name string
		opts config.Agent
		says string
	}{
		{"several nodes", config.Agent{SharedCPUs: true}, "several nodes share this machine"},
		{"off", config.Agent{RAPLTree: config.RAPLOff}, "--rapl-tree off"},
		{"asked for", config.Agent{SharedCPUs: true, RAPLTree: tree}, tree + " has no processor's counter"},
	} {
		s, err := openEnergy(c.opts)
		if err != nil {
			t.Fatal(err)
		}
		sample, err := s.Sample(t.Context(), nil)
		if err != nil || len(sample.Counters) != 1 || sample.Counters[0].Tag != api.EnergyUnavailable || !strings.Contains(sample.Counters[0].Reason, c.says) {
			t.Errorf("%s: got %+v, %v; want it unavailable, and %q", c.name, sample.Counters, err, c.says)
		}
	}
}
