package container_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestAHostileRootInAMemberGetsNowhere(t *testing.T) {
	r := newRig(t, "crun")
	m, other := r.member(t), r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	otherPID := pidOf(t, r, other.Assignment.ID)
	abstract := fmt.Sprintf("@nearmetal-test-%d", os.Getpid())
	listener, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	cases := []struct {
		probe, argument string
		want            string // a regular expression on the error
	}{
		{"read", "/etc/shadow", "no such file"},
		{"read", "/etc/sudoers", "no such file"},
		{"read", "/etc/machine-id", "no such file"},
		{"list", "/etc/ssl/private", "no such file"},
		{"list", r.cfg.StateDir, "no such file"},
		{"list", "/var/lib/dpkg", "no such file"},
		{"list", "/boot", "no such file"},
		{"read", fmt.Sprintf("/proc/%d/environ", otherPID), "no such file"},
		{"signal", fmt.Sprint(otherPID), "no such process"},
		{"signal", fmt.Sprint(os.Getpid()), "no such process"},
		{"dial", abstract, "connection refused"},
		{"write", "/usr/bin/true", "read-only|permission denied"},
		{"create", "/usr/bin/new", "read-only"},
		{"create", "/etc/new", "read-only"},
		{"write", "/etc/passwd", "read-only"},
		{"chmod", "/etc/passwd", "read-only"},
		{"create", "/new", "read-only"},
		{"create", "/run/nearmetal/new", "read-only"},
		{"remove", "/run/nearmetal/agent.sock", "read-only"},
		{"write", "/run/nearmetal-member", "read-only|permission denied"},
		{"remove", "/run/nearmetal-member", "busy|read-only"},
		{"write", "/proc/sys/kernel/core_pattern", "read-only|permission denied"},
		{"write", "/proc/sys/vm/drop_caches", "read-only|permission denied"},
		{"write", "/proc/sysrq-trigger", "read-only|permission denied|no such file"},
		{"create", "/sys/new", "read-only|not permitted|permission denied"},
		{"read", "/dev/mem", "no such file"},
		{"read", "/dev/kmsg", "no such file"},
		{"mount tmpfs", "/tmp", "not permitted"},
		{"remount writable", "/", "not permitted"},
		{"remount writable", "/usr", "not permitted"},
		{"unmount", "/usr", "not permitted"},
		{"make block device", "/tmp/disk", "not permitted"},
		{"make user namespace", "", "not permitted"},
		{"load module", "", "not permitted"},
		{"set host name", "victim", "not permitted"},
		{"set time", "", "not permitted"},
		{"reboot", "", "not permitted"},
		{"kernel log", "", "not permitted"},
		{"become unmapped", "", "invalid argument"},
		{"raise locked memory", "", "not permitted|unlimited already"},
		{"load bpf", "", "not permitted"},
		{"trace performance", "", "not permitted|permission denied|no such file"},
	}
	for _, c := range cases {
		a := r.tell(t, m.Assignment.ID, order{Probe: c.probe, Argument: c.argument})
		if !regexp.MustCompile(c.want).MatchString(strings.ToLower(a.Err)) {
			t.Errorf("%s %s: error %q, want one that matches %q (output %q)", c.probe, c.argument, a.Err, c.want, a.Output)
		}
	}
}

func TestAMemberSeesNothingOfTheHostButWhatItsEnvironmentLists(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	root := strings.Fields("bin dev etc home lib lib64 mnt opt proc root run sbin srv sys tmp usr var")
	// Some packages bring libraries for other kinds of programs, whose links belong to the system as the others do.
	for _, link := range []string{"lib32", "libx32"} {
		if _, err := os.Lstat("/" + link); err == nil {
			root = append(root, link)
		}
	}
	slices.Sort(root)
	cases := []struct{ dir, want string }{
		{"/", strings.Join(root, " ")},
		{"/home", "hpc"},
		{"/root", ""},
		{"/tmp", ""},
		{"/mnt", ""},
		{"/run", "lock nearmetal nearmetal-member sshd user"},
		{"/run/nearmetal", "agent.sock"},
		{"/var", "cache empty lib lock log mail run spool tmp"},
		{"/var/lib", ""},
		{"/dev", "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"},
		{"/sys/fs/cgroup", ""},
		{"/sys/firmware", ""},
		{"/sys/class/net", "lo"},
	}
	for _, c := range cases {
		a := r.tell(t, m.Assignment.ID, order{Probe: "list", Argument: c.dir})
		if a.Output != c.want || a.Err != "" {
			t.Errorf("%s holds %q (%s), want %q", c.dir, a.Output, a.Err, c.want)
		}
	}
	etc := strings.Fields(r.tell(t, m.Assignment.ID, order{Probe: "list", Argument: "/etc"}).Output)
	for _, name := range etc {
		switch name {
		case "passwd", "group", "ssl", "localtime", "os-release":
			continue
		}
		allowed := false
		root, err := r.cfg.Environments[0].Root(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range root.Binds {
			allowed = allowed || b.Target == "/etc/"+name
		}
		if !allowed {
			t.Errorf("/etc/%s is neither generated nor allow-listed", name)
		}
	}
	var processes int
	for _, name := range strings.Fields(r.tell(t, m.Assignment.ID, order{Probe: "list", Argument: "/proc"}).Output) {
		if strings.Trim(name, "0123456789") == "" {
			processes++
		}
	}
	if processes != 1 {
		t.Errorf("the member sees %d processes, want its own alone", processes)
	}
}

func TestAFirstProcessInheritsNoOpenFileOfTheHostButItsOutput(t *testing.T) {
	r := newRig(t, "crun")
	r.cfg.MemberArgs = []string{"/bin/sh", "-c", "ls -l /proc/$$/fd"}
	d := r.open(t)
	m := r.member(t)
	if err := d.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Wait(t.Context(), m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	output, err := os.ReadFile(filepath.Join(r.cfg.StateDir, "members", m.Assignment.ID, "output.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(output)) {
		_, open, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if ok && open != "/dev/null" && !strings.HasSuffix(open, "output.log") {
			t.Errorf("inherited: %s", line)
		}
	}
	if !strings.Contains(string(output), "2 -> ") {
		t.Errorf("the list is %q", output)
	}
}

func TestALinkInTheSharedHomeHandsNoHostFileToATenant(t *testing.T) {
	r := newRig(t, "crun")
	first, second := r.member(t), r.member(t)
	victim := filepath.Join(r.dir, "victim")
	if err := os.Mkdir(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r.run(t, first.Assignment.ID, "/bin/sh", "-c", "rmdir /home/hpc && ln -s "+victim+" /home/hpc")
	if err := r.Start(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(victim)
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		t.Errorf("a host directory that the tenant linked to belongs to %d now", uid)
	}
}

func pidOf(t *testing.T, r *rig, id string) int {
	t.Helper()
	observations, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range observations {
		if o.ID == id {
			return o.PID
		}
	}
	t.Fatalf("member %q is not observed", id)
	return 0
}
