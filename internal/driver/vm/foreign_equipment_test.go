package vm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

// tells is user data that has a guest print what it is.
const tells = `#cloud-config
hostname: not-this
users:
  - name: extra
    uid: 2001
write_files:
  - path: /etc/extra
    content: "of the user"
runcmd:
  - [sh, -c, "echo GUEST name=$(hostname) hpc=$(id -u hpc) extra=$(id -u extra) file=$(cat /etc/extra | tr ' ' _) sshd=$(test -s /etc/ssh/sshd_config.d/nearmetal.conf && echo ours) key=$(cut -d' ' -f1 /etc/ssh/ssh_host_ed25519_key.pub) disk=$(cat /sys/block/vda/size) END > /dev/ttyS0"]
`

// TestACloudGuestHasItsDiskItsUserDataAndAnswersEveryProbe boots one guest and shows on it all that its group asked for.
func TestACloudGuestHasItsDiskItsUserDataAndAnswersEveryProbe(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Cloud(t)
	r := foreign(t, disk.Path, api.ForeignDisk{OS: api.SystemLinux, Firmware: api.FirmwareUEFI, Size: api.Bytes(disk.Bytes), Probe: api.Probe{TCP: 22}})
	const size = 20 << 30
	m := r.member(t)
	m.Assignment.Memory[0].Bytes, m.Assignment.DiskBytes = 768<<20, size
	m.Files = append(m.Files, driver.File{Path: "/etc/nearmetal/user-data", Content: []byte(tells), Mode: 0o600})
	id := m.Assignment.ID
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	t.Log("TCP port 22 takes a connection")
	said := awaitPrinted(t, r, id, regexp.MustCompile(`GUEST name=.* END`))
	t.Log(said)
	for _, want := range []string{"name=" + m.Assignment.Member, "hpc=1000", "extra=2001", "file=of_the_user", "sshd=ours", "disk=41943040"} {
		if !strings.Contains(said, " "+want+" ") {
			t.Errorf("the guest does not say %q", want)
		}
	}
	limits, err := os.ReadFile(filepath.Join("/proc", pidOf(t, r, id), "limits"))
	if bound := regexp.MustCompile(`Max file size +21482307584 `); err != nil || !bound.Match(limits) {
		t.Errorf("QEMU may write larger files than its disk can become: %v\n%s", err, limits)
	}
	probedAgain(t, r, id, api.Probe{Ping: true})
	t.Log("it answers pings")
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
}

// awaitPrinted waits until a guest has printed what matches.
func awaitPrinted(t *testing.T, r *rig, id string, what *regexp.Regexp) string {
	t.Helper()
	kept := filepath.Join(r.cfg.StateDir, "vms", id, "console.log")
	console, err := r.Console(t.Context(), id, api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	end := time.AfterFunc(patience, func() { _ = console.Close() })
	defer end.Stop()
	defer func() { _ = console.Close() }()
	buffer := make([]byte, 4096)
	for {
		if found := what.Find(serialconsole.Kept(kept)); found != nil {
			return string(found)
		}
		if _, err := console.Read(buffer); err != nil {
			t.Fatalf("the guest does not print %s: %v; it printed last:\n%s", what, err, serialconsole.Kept(kept))
		}
	}
}

// probedAgain has a new driver probe a guest that is ready in another way.
func probedAgain(t *testing.T, r *rig, id string, probe api.Probe) {
	t.Helper()
	file := filepath.Join(r.cfg.StateDir, "vms", id, "member.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	probe.Timeout = api.Duration(patience)
	record["foreign"].(map[string]any)["probe"], record["ready"], record["started_at"] = probe, false, time.Now()
	if text, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r.reopen(t)
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Errorf("probed by %+v: %v", probe, err)
	}
}
