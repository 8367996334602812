package container_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestTheKernelHoldsAMemberToItsAssignment(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	id := m.Assignment.ID
	if got := strings.TrimSpace(r.run(t, id, "nproc")); got != "1" {
		t.Errorf("the member counts %s processors, want the 1 it was assigned", got)
	}
	status := r.run(t, id, "cat", "/proc/self/status")
	for _, want := range []string{"Cpus_allowed_list:\t0\n", "Mems_allowed_list:\t0\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("/proc/self/status lacks %q:\n%s", want, status)
		}
	}
	limits := []struct {
		files []string // cgroup v1, v2
		want  string
	}{
		{[]string{"memory/nearmetal/%s/memory.limit_in_bytes", "nearmetal/%s/memory.max"}, "268435456"},
		{[]string{"pids/nearmetal/%s/pids.max", "nearmetal/%s/pids.max"}, "4096"},
		{[]string{"cpuset/nearmetal/%s/cpuset.cpus", "nearmetal/%s/cpuset.cpus"}, "0"},
		{[]string{"cpuset/nearmetal/%s/cpuset.mems", "nearmetal/%s/cpuset.mems"}, "0"},
	}
	for _, l := range limits {
		var got []string
		for _, file := range l.files {
			path := filepath.Join("/sys/fs/cgroup", fmt.Sprintf(file, filepath.Join(r.cfg.Group(), id)))
			if text, err := os.ReadFile(path); err == nil {
				got = append(got, strings.TrimSpace(string(text)))
			}
		}
		if !slices.Equal(got, []string{l.want}) {
			t.Errorf("%s holds %q, want %q", l.files, got, l.want)
		}
	}
	if size := r.run(t, id, "df", "--output=size", "-B1", "/dev/shm"); !strings.Contains(size, "134217728") {
		t.Errorf("/dev/shm is of size %s, want half of the memory", size)
	}
}

func TestAMemberThatUsesMoreMemoryThanItsOwnIsEndedByTheKernelAndNothingElseIs(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	m.Assignment.Memory = []api.MemoryClaim{{Bytes: 64 << 20}}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	a := r.tell(t, m.Assignment.ID, order{Run: []string{"/bin/sh", "-c", "head -c 200m /dev/zero | tail -c 150m | wc -c"}})
	if strings.Contains(a.Output, "157286400") {
		t.Errorf("150 MiB fit into a member of 64 MiB: %q", a.Output)
	}
	if got := strings.TrimSpace(r.run(t, m.Assignment.ID, "echo", "alive")); got != "alive" {
		t.Errorf("the member's first process did not survive: %q", got)
	}
}

func TestGeneratedFilesHaveTheirOwnersAndModesAndAreReplacedInARunningMember(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	m.Files = append(m.Files,
		driver.File{Path: "/etc/ssh/key", Content: []byte("secret\n"), Mode: 0o600},
		driver.File{Path: "/etc/nearmetal/ssh/id", Content: []byte("mine\n"), Mode: 0o600, OwnedByUser: true},
		driver.File{Path: "/etc/nearmetal/hostfile", Content: []byte("a slots=1\n"), Mode: 0o644},
		driver.File{Path: "/etc/services", Content: []byte("generated\n"), Mode: 0o644},
		driver.File{Path: "/etc/ssl/certs/ours.pem", Content: []byte("cert\n"), Mode: 0o644},
	)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	id := m.Assignment.ID
	stat := func(path string) string {
		return strings.TrimSpace(r.run(t, id, "stat", "-c", "%u:%g %a", path))
	}
	for path, want := range map[string]string{
		"/": "0:0 755", "/etc": "0:0 755", "/etc/ssh": "0:0 755", "/etc/ssh/key": "0:0 600",
		"/etc/nearmetal/ssh/id": "1000:1000 600", "/etc/nearmetal/ssh": "0:0 755", "/run/sshd": "0:0 755", "/var/tmp": "0:0 1777",
		"/tmp": "0:0 1777", "/root": "0:0 700", "/home": "0:0 755", "/home/hpc": "1000:1000 700", "/usr": "65534:65534 755",
	} {
		if got := stat(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	read := func(path string) string { return r.tell(t, id, order{Probe: "read", Argument: path}).Output }
	if got := read("/etc/services"); got != "generated\n" {
		t.Errorf("a generated file does not win over the host's: %q", got)
	}
	if names := r.run(t, id, "ls", "/etc/ssl/certs"); !strings.Contains(names, "ours.pem") {
		t.Errorf("a file generated into a host directory is not there: %q", names)
	}

	// The agent is restarted, then a member joins the cluster and a file is no longer needed.
	second := r.open(t)
	m.Files = slices.DeleteFunc(slices.Clone(m.Files), func(f driver.File) bool { return f.Path == "/etc/ssh/key" })
	for i := range m.Files {
		if m.Files[i].Path == "/etc/nearmetal/hostfile" {
			m.Files[i].Content = []byte("a slots=1\nb slots=1\n")
		}
	}
	m.Files = append(m.Files, driver.File{Path: "/etc/nearmetal/new/file", Content: []byte("new\n"), Mode: 0o644})
	if err := second.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if got := read("/etc/nearmetal/hostfile"); got != "a slots=1\nb slots=1\n" {
		t.Errorf("after Update the hostfile is %q", got)
	}
	if got := read("/etc/nearmetal/new/file"); got != "new\n" {
		t.Errorf("after Update the new file is %q", got)
	}
	if a := r.tell(t, id, order{Probe: "read", Argument: "/etc/ssh/key"}); a.Err == "" {
		t.Error("after Update the file no longer asked for is still there")
	}
	if a := r.tell(t, id, order{Probe: "create", Argument: "/etc/x"}); !strings.Contains(a.Err, "read-only") {
		t.Errorf("after Update /etc is writable in the member: %q", a.Err)
	}
	if names := r.run(t, id, "ls", "-A", "/"); strings.Contains(names, ".new") {
		t.Errorf("Update left a temporary file: %q", names)
	}
}

func TestAnUpdateThatAHostFileWouldHideIsRefused(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Files = append(m.Files, driver.File{Path: "/etc/alternatives/cc", Mode: 0o644})
	err := r.Update(t.Context(), m)
	if err == nil || !strings.Contains(err.Error(), "/etc/alternatives/cc would be hidden by the environment's /etc/alternatives") {
		t.Errorf("Update: %v", err)
	}
}

func TestWhatTheRuntimeSaysReachesTheUser(t *testing.T) {
	for _, runtime := range []string{"crun", "runc"} {
		r := newRig(t, runtime)
		r.cfg.MemberArgs = []string{"/no/such/program"}
		d := r.open(t)
		m := r.member(t)
		err := d.Start(t.Context(), m)
		want := `^starting member "testcluster\.m-\d+\.1": ` + runtime + ` (create|start): .*no.such.program.*no such file or directory`
		if err == nil || !regexp.MustCompile("(?i)"+want).MatchString(err.Error()) {
			t.Errorf("error %q, want a match of %s", err, want)
		}
		if err := d.Clean(t.Context(), m.Assignment.ID); err != nil {
			t.Error(err)
		}
	}
}

func TestAnEndedMemberTellsItsExitCodeAndLastWords(t *testing.T) {
	r := newRig(t, "crun")
	r.cfg.MemberArgs = []string{"/bin/sh", "-c", "echo starting; echo the disk is full >&2; exit 5"}
	d := r.open(t)
	m := r.member(t)
	if err := d.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	o, err := d.Wait(t.Context(), m.Assignment.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := "its first process has ended with exit code 5; its last output: starting the disk is full"
	if o.Message != want || o.ExitCode == nil || *o.ExitCode != 5 {
		t.Errorf("observed %q with code %v, want %q", o.Message, o.ExitCode, want)
	}
}

// TestUsersLogInBySSHAndRunMPI shows that the capabilities, no_new_privs and the seccomp profile leave enough for sshd and MPI.
func TestUsersLogInBySSHAndRunMPI(t *testing.T) {
	r := newRig(t, "crun")
	for _, program := range []string{"/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/mpirun"} {
		needs.Program(t, program)
	}
	m := r.member(t)
	m.Files[0].Content = append(m.Files[0].Content, "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"...)
	key := filepath.Join(t.TempDir(), "key")
	if output, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, output)
	}
	file := func(path, from string, mode uint32, user bool) {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		m.Files = append(m.Files, driver.File{Path: path, Content: content, Mode: mode, OwnedByUser: user})
	}
	file("/etc/ssh/host_key", key, 0o600, false)
	file("/etc/nearmetal/key", key, 0o600, true)
	file("/etc/ssh/authorized_keys", key+".pub", 0o644, false)
	m.Files = append(m.Files, driver.File{Path: "/etc/ssh/sshd_config", Mode: 0o644, Content: []byte(
		"HostKey /etc/ssh/host_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\nPasswordAuthentication no\nUsePAM no\n")})
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	id := m.Assignment.ID
	r.run(t, id, "/usr/sbin/sshd")
	for _, user := range []string{"hpc", "root"} {
		got := r.run(t, id, "ssh", "-i", "/etc/nearmetal/key", "-tt", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR",
			user+"@127.0.0.1", "id -un; tty; grep CapEff /proc/self/status")
		if !strings.HasPrefix(got, user+"\r\n/dev/pts/") {
			t.Errorf("login of %s printed %q", user, got)
		}
	}
	got := r.run(t, id, "ssh", "-i", "/etc/nearmetal/key", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR", "hpc@127.0.0.1",
		"mpirun --oversubscribe -n 2 --host localhost:2 sh -c 'echo rank $OMPI_COMM_WORLD_RANK'")
	if !strings.Contains(got, "rank 0") || !strings.Contains(got, "rank 1") {
		t.Errorf("mpirun printed %q", got)
	}
}
