package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
)

// mistake is wrong usage with what must come of it.
type mistake struct {
	name string
	args []string
	// file is written to FILE before, which stands for its path in args and says.
	file string
	code int
	says []string
}

var mistakes = []mistake{
	{"size 0", create("--size", "0"), "", exitUsage, []string{"--size", "at least 1"}},
	{"negative size", create("--size", "-3"), "", exitUsage, []string{"--size", "-3"}},
	{"no cores", create("--cores", "0"), "", exitUsage, []string{"--cores"}},
	{"memory that is no size", create("--memory", "much"), "", exitUsage, []string{"--memory", "much"}},
	{"more members than there is room for", create("--size", "900"), "", exitRefused, []string{"900", "members fit"}},
	{"more cores than a node has", create("--cores", "4000"), "", exitRefused, []string{"4000", "cores"}},
	{"more memory than a node has", create("--memory", "900TiB"), "", exitRefused, []string{"900TiB", "memory"}},
	{"unknown environment", create("--env", "nowhere"), "", exitUsage, []string{"nowhere", "local"}},
	{"unknown stack", create("--stack", "cloud"), "", exitUsage, []string{"cloud", "container"}},
	{"a stack no node has", create("--stack", "metal"), "", exitUsage, []string{"metal", "container"}},
	{"unknown flag", create("--sise", "2"), "", exitUsage, []string{"--sise"}},
	{"unknown field in YAML", fromFile, "name: x\nsize: 2\ncoers: 1\n", exitUsage, []string{"FILE", "line 3", "coers", "cores"}},
	{"unknown field in JSON", fromFile, "{\n \"name\": \"x\",\n \"siez\": 2}", exitUsage, []string{"FILE", "line 3", "siez", "size"}},
	{"malformed YAML", fromFile, "name: x\nsize: [2\n", exitUsage, []string{"FILE", "line "}},
	{"malformed JSON", fromFile, "{\"name\": \"x\",\n \"size\": 2,,}", exitUsage, []string{"FILE", "line 2"}},
	{"empty file", fromFile, "", exitUsage, []string{"FILE", "empty"}},
	{"no such file", []string{"cluster", "create", "-f", "/no/such/file"}, "", exitUsage, []string{"/no/such/file"}},
	{"a name that exists", []string{"cluster", "create", "kept"}, "", exitConflict, []string{`"kept"`, "exists"}},
	{"capitals in a name", []string{"cluster", "create", "Big"}, "", exitUsage, []string{`"Big"`, "lower-case"}},
	{"an underscore in a name", []string{"cluster", "create", "a_b"}, "", exitUsage, []string{`"a_b"`}},
	{"a hyphen at the end of a name", []string{"cluster", "create", "a-"}, "", exitUsage, []string{`"a-"`}},
	{"a name of 64 characters", []string{"cluster", "create", strings.Repeat("a", 64)}, "", exitUsage, []string{"64 characters", "at most 40"}},
	{"an empty name", []string{"cluster", "create", ""}, "", exitUsage, []string{"name"}},
	{"no name", []string{"cluster", "create"}, "", exitUsage, []string{"name the cluster"}},
	{"deleting what is not there", []string{"cluster", "delete", "nobody"}, "", exitNotFound, []string{`"nobody"`, "nearmetal cluster list"}},
	{"deleting an empty selection", []string{"cluster", "delete"}, "", exitUsage, []string{"nothing was deleted"}},
	{"deleting an empty name", []string{"cluster", "delete", ""}, "", exitUsage, []string{"name"}},
	{"showing what is not there", []string{"cluster", "show", "nobody"}, "", exitNotFound, []string{`"nobody"`}},
	{"a job on a cluster that is not there", []string{"run", "nobody", "--", "true"}, "", exitNotFound, []string{`"nobody"`}},
	{"a job on a cluster that is not ready", []string{"run", "refused", "--", "true"}, "", exitConflict, []string{`"refused"`, "jobs run on ready clusters", "nearmetal cluster events refused"}},
	{"a job of more ranks than cores", []string{"run", "kept", "-n", "99", "--", "true"}, "", exitUsage, []string{"99", "1 core"}},
	{"a job of no ranks", []string{"run", "kept", "-n", "0", "--", "true"}, "", exitUsage, []string{"-n"}},
	{"a job without a command", []string{"run", "kept"}, "", exitUsage, []string{"command"}},
	{"a job that is not there", []string{"job", "logs", "nobody"}, "", exitNotFound, []string{"nobody"}},
	{"a node that is not there", []string{"node", "show", "n99"}, "", exitNotFound, []string{"n99"}},
	{"an environment that is not there", []string{"env", "show", "nowhere"}, "", exitNotFound, []string{"nowhere"}},
	{"an unknown command", []string{"cluster", "crate", "x"}, "", exitUsage, []string{"crate", "nearmetal cluster --help"}},
	{"an unknown output format", []string{"cluster", "list", "-o", "xml"}, "", exitUsage, []string{"xml", "json"}},
}

var fromFile = []string{"cluster", "create", "-f", "FILE"}

func create(args ...string) []string { return append([]string{"cluster", "create", "x"}, args...) }

func TestBadInputIsToldAndLosesNothing(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1)
	s.must("cluster", "create", "kept", "--memory", "64MiB")
	s.must("cluster", "create", "refused", "--size", "999", "--no-wait")
	before := s.waitReady("kept")
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			s := s.as(t)
			file := filepath.Join(t.TempDir(), "cluster"+map[bool]string{true: ".json", false: ".yaml"}[strings.HasPrefix(m.file, "{")])
			if err := os.WriteFile(file, []byte(m.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args := strings.Split(strings.ReplaceAll(strings.Join(m.args, "\x00"), "FILE", file), "\x00")
			a := s.cli(args...)
			if a.code != m.code {
				t.Errorf("exit code %d, want %d", a.code, m.code)
			}
			for _, part := range m.says {
				wantMessage(t, a.err, strings.ReplaceAll(part, "FILE", file))
			}
		})
	}
	var all []api.Cluster
	if s.mustJSON(&all, "cluster", "list"); len(all) != 2 {
		t.Errorf("there should be two clusters: %+v", all)
	}
	if after := s.waitReady("kept"); after.UID != before.UID || after.Status.Generation != before.Status.Generation {
		t.Errorf("cluster kept was %s generation %d and is %s generation %d", before.UID, before.Status.Generation, after.UID, after.Status.Generation)
	}
	s.must("run", "kept", "--", "true")
}

func TestAServerThatCanNotStartSaysWhy(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 1)
	s.must("cluster", "create", "kept", "--memory", "64MiB")
	kept := s.waitReady("kept")

	t.Run("a second server on one state directory", func(t *testing.T) {
		a := s.as(t).other(nil, "dev", "--state", s.dir, "--listen", freeAddress(t))
		wantFailure(t, a, s.dir, fmt.Sprint(s.pid()), "--state")
	})
	t.Run("a port in use", func(t *testing.T) {
		a := s.as(t).other(nil, "dev", "--state", shortDir(t), "--listen", s.addr)
		wantFailure(t, a, s.addr, "in use", "--listen")
	})
	t.Run("not root", func(t *testing.T) {
		a := s.as(t).nobody("dev", "--state", "/nonexistent", "--listen", freeAddress(t))
		wantFailure(t, a, "root", "sudo")
	})
	t.Run("state of another version", func(t *testing.T) {
		s := s.as(t)
		s.stop()
		ours := s.setFormat(fmt.Sprintf(`{"format": %d}`, state.Format+1))
		a := s.other(nil, "dev", "--state", s.dir, "--listen", s.addr)
		wantFailure(t, a, "newer version", fmt.Sprint(state.Format+1), "start a newer nearmetal")
		s.setFormat(fmt.Sprintf(`{"format": %d}`, state.Format-1))
		a = s.other(nil, "dev", "--state", s.dir, "--listen", s.addr)
		wantFailure(t, a, "older version", fmt.Sprint(state.Format-1), "empty state directory")
		s.setFormat(ours)
		s.start()
		s.waitForNodes(1)
	})
	if after := s.waitReady("kept"); after.UID != kept.UID {
		t.Errorf("cluster kept was %s and is %s", kept.UID, after.UID)
	}
	s.must("run", "kept", "--", "true")
}

// other runs another process of the program, which should end by itself.
func (s *site) other(env []string, args ...string) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	return startCommand(s.t, exec.CommandContext(ctx, s.program, args...), env...).wait()
}

// nobody runs the program as an unprivileged user, who need not be able to reach its file.
func (s *site) nobody(args ...string) answer {
	s.t.Helper()
	file, err := os.Open(s.program)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.ExtraFiles = []*os.File{file}
	cmd.Path = "/proc/self/fd/3"
	return startCommand(s.t, cmd).wait()
}

// setFormat writes the format into the state of a stopped site, as another version would have, and returns what was there.
func (s *site) setFormat(value string) string {
	s.t.Helper()
	db, err := etcd.Open(s.t.Context(), etcd.Config{Dir: filepath.Join(s.dir, "etcd")})
	if err != nil {
		s.t.Fatal(err)
	}
	former, ok, err := db.Get(s.t.Context(), "format")
	if err == nil && ok {
		_, err = db.Commit(s.t.Context(), nil, []store.Op{{Key: "format", Value: []byte(value)}})
	}
	if err = errors.Join(err, db.Close()); err != nil || !ok {
		s.t.Fatalf("the format of the state is there: %v; %v", ok, err)
	}
	return string(former.Value)
}

// wantFailure checks that a process refused to run and said all of this.
func wantFailure(t *testing.T, a answer, says ...string) {
	t.Helper()
	if a.code != exitFailed {
		t.Errorf("exit code %d, want %d", a.code, exitFailed)
	}
	wantMessage(t, a.err, says...)
}

// wantMessage checks that an error says all of this.
func wantMessage(t *testing.T, message string, says ...string) {
	t.Helper()
	for _, part := range says {
		if !strings.Contains(message, part) {
			t.Errorf("the message does not say %q:\n%s", part, message)
		}
	}
}

// TestWithoutAnOCIRuntimeANodeSaysSo hides the runtimes by a PATH that has everything else.
func TestWithoutAnOCIRuntimeANodeSaysSo(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	bin := t.TempDir()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if name := e.Name(); name != "crun" && name != "runc" {
				_ = os.Symlink(filepath.Join(dir, name), filepath.Join(bin, name)) // the first one of a name stays
			}
		}
	}
	s := newSite(t, ordinary)
	s.start("PATH=" + bin)
	s.eventually(time.Minute, "the node to report", func() bool { return strings.Contains(s.cli("node", "show", "n1").out, "crun") })
	a := s.cli("cluster", "create", "x")
	if a.code != exitUsage {
		t.Errorf("exit code %d, want %d", a.code, exitUsage)
	}
	wantMessage(t, a.err, "container", "crun", "apt-get install")
	wantMessage(t, s.must("node", "show", "n1"), "crun", "apt-get install")
}

// TestAFullDiskRefusesWhatGrowsAndStopsNothing runs a site whose state is on a small file system. Jobs that print fill it, then something else
// takes all that is left.
func TestAFullDiskRefusesWhatGrowsAndStopsNothing(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := newSiteIn(t, ordinary, smallDisk(t, "640m"), "--node-cores", "8",
		"--log-limit", "4GiB", "--project-log-limit", "4GiB", "--job-log-limit", "1GiB") // the disk is what has no room
	s.start()
	s.waitForNodes(1)
	kept, hurt := s.cluster("kept", 1), s.cluster("hurt", 1)
	printing := s.cluster("printing", 1)

	filler := filepath.Join(s.dir, "filler")
	fill(t, filler, 150<<20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 5 {
		s.background(ctx, "run", "printing", "--", "yes", strings.Repeat("x", 70))
	}
	s.eventually(2*time.Minute, "output of jobs to wait", func() bool { return strings.Contains(s.log.String(), "output of jobs waits for room") })
	s.must("cluster", "create", "late", "--memory", "64MiB", "--cores", "1")
	if free := freeBytes(t, s.dir); free < 40<<20 {
		t.Errorf("jobs that print have left %d MiB of the disk", free>>20)
	}

	fill(t, filler+"2", 0)
	refused := func(when string) {
		t.Helper()
		a := s.cli("cluster", "create", "refused", "--memory", "64MiB", "--no-wait")
		if a.code != exitFailed {
			t.Fatalf("%s: a create ended with exit code %d, want it refused", when, a.code)
		}
		wantMessage(t, a.err, "nothing was changed", "disk of the server's state is full", filepath.Join(s.dir, "joblogs")+" take ", "remove files of jobs that have ended")
	}
	s.eventually(time.Minute, "a word of what fills the disk in the log", func() bool { return strings.Contains(s.log.String(), "deletes and reads continue") })
	refused("on the full disk")
	for id, pid := range memberProcesses(t, hurt.UID) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("member %s: %v", id, err)
		}
	}
	for _, start := range []string{"at the first start", "at the second start"} {
		s.kill()
		s.start()
		s.waitForNodes(1)
		s.must("cluster", "list")
		refused(start)
	}
	s.must("cluster", "delete", "late", "printing")
	wantMessage(t, s.log.String(), "the store gets room of the reserve")
	cancel()
	refused("after the deletes")

	for _, path := range []string{filler, filler + "2"} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually(time.Minute, "the reserve and room for requests", func() bool { return strings.Contains(s.log.String(), "has room again") })
	s.must("cluster", "create", "after", "--memory", "64MiB", "--cores", "1")
	if after := s.waitReady("kept"); after.UID != kept.UID {
		t.Errorf("cluster kept was %s and is %s", kept.UID, after.UID)
	}
	s.must("run", "kept", "--", "true")
	if after := s.waitMembers("hurt", []string{"hurt-0"}); after.UID != hurt.UID {
		t.Errorf("cluster hurt was %s and is %s", hurt.UID, after.UID)
	}
	s.must("run", "hurt", "--", "true")
	if _, err := s.api().Cluster(t.Context(), printing.Name); err == nil {
		t.Error("the deleted cluster is back")
	}
}

// TestAFullDiskOfANodeIsToldAndMembersGoElsewhere runs a node on a small file system, which is full while a cluster grows and heals.
func TestAFullDiskOfANodeIsToldAndMembersGoElsewhere(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	dir := shortDir(t)
	node := filepath.Join(dir, "nodes", "n1")
	if err := os.MkdirAll(node, 0o711); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, node, "32m")
	s := newSiteIn(t, ordinary, dir, "--nodes", "2", "--node-cores", "3")
	s.start()
	s.waitForNodes(2)
	before := s.cluster("c", 2)
	for _, m := range before.Status.Members {
		if m.Node != "n1" {
			t.Fatalf("the test needs both members on n1: %+v", before.Status.Members)
		}
	}
	filler := filepath.Join(node, "filler")
	fill(t, filler, 0)
	s.must("cluster", "scale", "c", "--size", "3")
	if node := placed(s.waitMembers("c", first(3, "c")))["c-2"].Node; node != "n2" {
		t.Errorf("c-2 is on %s, where there is no room for it", node)
	}
	wantMessage(t, s.must("cluster", "events", "c"), "no space left", "n1", "n2")
	after := s.waitReplaced(s.killMembers("c", "c-1"), first(3, "c"))
	if node := placed(after)["c-1"].Node; node != "n2" {
		t.Errorf("c-1 is on %s, where there is no room for it", node)
	}
	s.checkUsable(after)
	s.must("node", "show", "n1")

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.must("node", "drain", "n2")
	s.must("cluster", "scale", "c", "--size", "4")
	if node := placed(s.waitMembers("c", first(4, "c")))["c-3"].Node; node != "n1" {
		t.Errorf("c-3 is on %s, want it on n1, which has room again", node)
	}
	s.checkSound()
}

// TestADiskWithoutRoomIsTold starts a site where not even its first files fit.
func TestADiskWithoutRoomIsTold(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := newSiteIn(t, ordinary, smallDisk(t, "64k"))
	a := s.other(nil, "dev", "--state", s.dir, "--listen", s.addr)
	wantFailure(t, a, "no space left", s.dir)
}

// smallDisk is a directory with so much room, of a file system of its own until the test ends.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := shortDir(t)
	mountSmall(t, dir, size)
	return dir
}

func mountSmall(t *testing.T, dir, size string) {
	t.Helper()
	if err := unix.Mount("small", dir, "tmpfs", 0, "mode=755,size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// fill takes room of a file system until so much is left.
func fill(t *testing.T, path string, leave int64) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if free := freeBytes(t, filepath.Dir(path)); leave > 0 {
		if err := unix.Fallocate(int(file.Fd()), 0, 0, free-leave); err != nil {
			t.Fatal(err)
		}
		return
	}
	for block := make([]byte, 1<<16); err == nil; {
		_, err = file.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// freeBytes is what is free of the file system of a directory.
func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}
