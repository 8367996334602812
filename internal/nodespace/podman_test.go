package nodespace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// podman is Podman with storage of the test's own. Its bridge, rules and sysctls are those of the calling thread's network namespace.
type podman struct {
	*testing.T
	host
	storage []string
}

func newPodman(t *testing.T, h host) podman {
	t.Helper()
	needs.Program(t, "podman")
	needs.Program(t, "iptables")
	dir, err := os.MkdirTemp("/run", "nmpod") // a runroot of Podman has at most 50 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return podman{T: t, host: h, storage: []string{
		"--root", dir + "/root", "--runroot", dir + "/run", "--cgroup-manager", "cgroupfs",
		"--runtime", needs.Program(t, "runc"),
	}} // crun 1.8.1 refuses hosts with cgroup v1 and v2
}

func (p podman) run(args ...string) string {
	p.Helper()
	var output []byte
	err := p.Do(func() (err error) {
		output, err = exec.Command("podman", append(p.storage, args...)...).Output()
		if exit, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return err
	})
	if err != nil {
		p.Fatalf("podman %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(output))
}

// start runs a container on Podman's default bridge with a published port. Its root is the machine's /usr; the test listens in its network.
func (p podman) start() container {
	t := p.T
	t.Helper()
	rootfs := filepath.Join(t.TempDir(), "rootfs")
	for _, dir := range []string{"usr", "etc", "proc", "sys", "dev", "run", "tmp"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+link, filepath.Join(rootfs, link)); err != nil {
			t.Fatal(err)
		}
	}
	id := p.run("run", "--detach", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--volume", "/usr:/usr:ro",
		"--publish", "192.0.2.2:8080:80", "--rootfs", rootfs, "/bin/sleep", "infinity")
	network, err := netns.Open("/proc/" + p.run("inspect", "--format", "{{.State.Pid}}", id) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	listen(t, network, "0.0.0.0:80")
	return container{Handle: network, published: "192.0.2.2:8080"}
}

// end removes the containers while the host's namespace is there.
func (p podman) end() { p.run("rm", "--force", "--all", "--time", "0") }

func TestPodmanThatWasStartedFirstAndASiteBothReachTheOutside(t *testing.T) {
	besideHost(t, func(h host) {
		p := newPodman(t, h)
		defer p.end()
		aSiteComesAndGoes(t, h, p.start())
	})
}

func TestPodmanThatIsStartedLaterAndASiteBothReachTheOutside(t *testing.T) {
	besideHost(t, func(h host) {
		dir := t.TempDir()
		cfg := Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true}
		spaces := ensure(t, cfg)
		defer remove(t, dir)
		p := newPodman(t, h)
		defer p.end()
		c := p.start()
		c.works(t, h, "beside a site that has not noticed")
		end := keep(t, h, cfg, spaces)
		if err := reaches(from(spaces.Nodes[0]), h.internet, patience); err != nil {
			t.Errorf("a node does not reach the outside: %v", err)
		}
		end()
		c.works(t, h, "beside a site")
		remove(t, dir)
		c.works(t, h, "after the site")
	})
}
