package build

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestWhatAptSaysIsToldInPlainWords(t *testing.T) {
	failed := errors.New("exit status 100")
	for _, tc := range []struct {
		lines, want string
		recipes     bool // it is the recipe's fault
	}{
		{"E: Unable to locate package opnmpi-bin\nE: Unable to locate package gc\nE: Unable to locate package gc\n", `package "opnmpi-bin" is not in Debian bookworm; find its name with: apt-cache search` + "\n" +
			`package "gc" is not in Debian bookworm; find its name with: apt-cache search`, true},
		{"E: Package 'awk' has no installation candidate\n", `package "awk" is not in Debian bookworm: other packages mention it, but none provides it`, true},
		{"E: Version '9' for 'gcc' was not found\n", `version 9 is not in Debian bookworm`, true},
		{"dpkg: error processing package gcc (--configure):\n", `package "gcc" of Debian bookworm can't be set up; the build's log says why`, true},
		{"E: Failed to fetch http://m/x.deb  404  Not Found [IP: ::1 80]\n", "can't fetch http://m/x.deb for Debian bookworm", false},
		{"tar: x: Cannot write: No space left on device\nE: Failed to fetch http://m/x.deb  oh\n", "the scratch directory of this node is full: free space there", false},
		{"E: The repository 'http://m bookworm InRelease' is not signed.\n", "the builder node does not trust the repository http://m bookworm InRelease", false},
		{"one\ntwo\n\nE: something new", "exit status 100; its last output:\none\ntwo\nE: something new", false},
	} {
		watch := &aptWatch{log: io.Discard, say: func(float64) {}}
		for _, piece := range strings.SplitAfter(tc.lines, " ") { // as a pipe may cut it
			if _, err := io.WriteString(watch, piece); err != nil {
				t.Fatal(err)
			}
		}
		err := watch.explain(failed, "Debian bookworm")
		var failure *Failure
		if !strings.HasPrefix(err.Error(), tc.want) || errors.As(err, &failure) != tc.recipes {
			t.Errorf("%q is told as %T %v\nwant %s", tc.lines, err, err, tc.want)
		}
	}
}

func TestProgressFollowsThePackages(t *testing.T) {
	var told []float64
	watch := &aptWatch{log: io.Discard, say: func(done float64) { told = append(told, done) }}
	fmt.Fprintln(watch, "0 upgraded, 40 newly installed, 0 to remove and 0 not upgraded.")
	for i := range 40 {
		fmt.Fprintf(watch, "Unpacking p%d ...\n", i)
	}
	for i := range 40 {
		fmt.Fprintf(watch, "Setting up p%d ...\r\n", i)
	}
	if len(told) != 10 || told[0] != 0.1 || told[9] != 1 {
		t.Errorf("told %v", told)
	}
}
