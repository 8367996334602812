package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/nearmetal/nearmetal/api"
)

// tools are the programs that builds run, and the Debian package of each.
var tools = []struct{ program, pkg string }{
	{"mmdebstrap", "mmdebstrap"},
	{"mkfs.erofs", "erofs-utils"},
	{"mksquashfs", "squashfs-tools"},
	{"crun", "crun"},
	{"cp", "coreutils"},
	{"mount", "mount"},
	{"prlimit", "util-linux"},
	{"setpriv", "util-linux"},
}

// Check tells whether environments can be built on this node; problems say what to do.
func (b *Builder) Check(context.Context) api.BuilderCheck {
	var check api.BuilderCheck
	problem := func(format string, args ...any) {
		check.Problems = append(check.Problems, fmt.Sprintf(format, args...))
	}
	if os.Geteuid() != 0 {
		problem("builds need root; run the agent as root")
	}
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err != nil {
			problem("%s is missing; run: apt-get install %s", t.program, t.pkg)
		}
	}
	check.OK = len(check.Problems) == 0
	return check
}
