package cli_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestErrorsAboutNetworksNameTheFlagsAsTheyWereGiven(t *testing.T) {
	s := newSite(t)
	sh := viaSocket(s)
	if r := sh.run(t, "network", "create", "lab", "--no-wait"); r.code != 0 {
		t.Fatal(r.err)
	}
	for line, want := range map[string]string{
		"network set project/lab --add-record a=10.0.0.1 --add-record b.nearmetal.internal=10.0.0.2": `--add-record b.nearmetal.internal=10.0.0.2: "b.nearmetal.internal" is in the domain`,
		"network set project/lab --add-record licence=10.1.1":                                        `--add-record licence=10.1.1: "10.1.1" is not the address of a host`,
		"network set project/lab --add-record a=10.0.0.1 --remove-record licence":                    `--remove-record licence: the network has no record "licence"`,
		"network set project/lab --remove-record a..b":                                               `--remove-record a..b: "a..b" is not a DNS name`,
		"network create other --prefix6 fd00:1234::/56":                                              `Error: --prefix6: fd00:1234::/56 has length /56`,
	} {
		r := sh.run(t, strings.Fields(line)...)
		if r.code != cli.ExitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d: %s, want %s", line, r.code, r.err, want)
		}
	}
}
