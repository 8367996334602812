package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// fakeGPUs makes a folder with a CDI file of so many GPUs, each of which is a second /dev/zero.
func fakeGPUs(t *testing.T, count int) (folder string) {
	t.Helper()
	dir := t.TempDir()
	var devices []string
	for i := range count {
		node := filepath.Join(dir, fmt.Sprint("node", i))
		if err := errors.Join(unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(1, 5))), os.Chmod(node, 0o666)); err != nil {
			t.Fatal(err)
		}
		devices = append(devices, fmt.Sprintf(`{"name": "gpu%d", "containerEdits": {"deviceNodes": [{"path": "/dev/fakegpu%d", "hostPath": %q}]}}`, i, i, node))
	}
	file := fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [%s]}`, strings.Join(devices, ", "))
	if err := os.WriteFile(filepath.Join(dir, "fake.json"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A GPU belongs to one member at a time, from the commit that places the member to the proof that nothing of it is left.
func TestAWholeGPUIsOneMembersUntilItIsDeleted(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1, "--cdi-dir", fakeGPUs(t, 1))
	if out := s.must("node", "show", "n1"); !strings.Contains(out, "example.com/gpu=gpu0") {
		t.Errorf("node show does not list the GPU: %s", out)
	}
	c1 := s.cluster("c1", 1, "--gpu", "1")
	if d := c1.Status.Members[0].Devices; len(d) != 1 || d[0] != (api.MemberDevice{Class: "gpu", Node: "n1", Device: "example.com/gpu=gpu0", Way: "whole"}) {
		t.Errorf("its member has the devices %+v", d)
	}
	if out := s.must("run", "c1", "--", "head", "-c", "3", "/dev/fakegpu0"); out != "\x00\x00\x00" {
		t.Errorf("its member reads %q from the GPU", out)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"c2", "--gpu", "1"}, exitRefused, "needs a whole GPU: node n1: its only GPU of that kind is taken"},
		{[]string{"c2", "--gpu", "1:H200"}, exitRefused, "needs a whole GPU H200: node n1: it has example.com/gpu=gpu0 of an unknown model"},
		{[]string{"c2", "--gpu", "1:remote"}, exitUsage, `"1:remote" does not say how much memory of a GPU each member gets`},
		{[]string{"c2", "--gpu", "1:mig"}, exitRefused, "needs a slice of a GPU: no node has slices of GPUs"},
		{[]string{"c2", "--gpu", "1:any:1MiB", "--stack", "vm"}, exitUsage, "1MiB of memory is not between"},
		{[]string{"c2", "--gpu", "1", "--stack", "metal"}, exitUsage, `members on the stack "metal" get no GPUs yet`},
	} {
		if a := s.cli(append([]string{"cluster", "create"}, c.args...)...); a.code != c.code || !strings.Contains(a.err, c.want) {
			t.Errorf("cluster create %v: %d %q, want %d and %q", c.args, a.code, a.err, c.code, c.want)
		}
	}
	c2 := s.cluster("plain", 1)
	if a := s.cli("run", "plain", "--", "test", "-e", "/dev/fakegpu0"); a.code != exitFailed || len(c2.Status.Members[0].Devices) > 0 {
		t.Errorf("a member without a GPU: %+v", a)
	}
	s.must("cluster", "delete", "c1", "--yes")
	s.must("project", "set", "default", "--device", "gpu/gpus=1")
	s.cluster("c2", 1, "--gpu", "1")
	if a := s.cli("cluster", "create", "c3", "--gpu", "1"); a.code != exitRefused || !strings.Contains(a.err, "gpu/gpus") {
		t.Errorf("beyond the quota: %d %q", a.code, a.err)
	}
	var usage struct {
		Rows []struct {
			DeviceSeconds map[string]float64 `json:"device_seconds"`
		} `json:"rows"`
	}
	if err := json.Unmarshal([]byte(s.must("usage", "--by", "cluster", "-o", "json")), &usage); err != nil {
		t.Fatal(err)
	}
	held := 0.0
	for _, row := range usage.Rows {
		held += row.DeviceSeconds["gpu/gpus"]
	}
	if held <= 0 {
		t.Errorf("usage has %v GPU-seconds: %+v", held, usage)
	}
	s.must("cluster", "delete", "c2", "plain", "--yes")
}
