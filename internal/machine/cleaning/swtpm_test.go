package cleaning

import (
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// tool runs a program of tpm2-tools on the TPM at this socket.
func tool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "TPM2TOOLS_TCTI=swtpm:path="+filepath.Join(dir, "tpm"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// startTPM starts a TPM in software, and returns how to open it.
func startTPM(t *testing.T, dir string) func() (io.ReadWriteCloser, error) {
	t.Helper()
	socket := filepath.Join(dir, "tpm")
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--flags", "not-need-init,startup-clear",
		"--server", "type=unixio,path="+socket, "--ctrl", "type=unixio,path="+socket+".ctrl")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// It serves one connection after the other, and takes a moment to come up.
	return func() (io.ReadWriteCloser, error) {
		deadline, tick := time.After(30*time.Second), time.NewTicker(20*time.Millisecond)
		defer tick.Stop()
		for {
			conn, err := net.Dial("unix", socket)
			if err == nil {
				return conn, nil
			}
			select {
			case <-tick.C:
			case <-deadline:
				return nil, err
			}
		}
	}
}

// A TPM in software, in which others' programs leave what a tenant would: a key, data, and an authorization that keeps the site out.
func TestATPMIsClearedOfWhatATenantLeft(t *testing.T) {
	for _, program := range []string{"swtpm", "tpm2_createprimary"} {
		needs.Program(t, program)
	}
	dir := t.TempDir()
	open := startTPM(t, dir)
	m := machineOf(t, nil)
	m.TPM = open
	conn, err := open()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	leave := func() {
		tool(t, dir, "tpm2_createprimary", "-Q", "-C", "o", "-c", "key.ctx")
		tool(t, dir, "tpm2_flushcontext", "-t")
		tool(t, dir, "tpm2_createprimary", "-Q", "-C", "o", "-c", "key.ctx")
		tool(t, dir, "tpm2_evictcontrol", "-Q", "-C", "o", "-c", "key.ctx", "0x81000001")
		tool(t, dir, "tpm2_nvdefine", "-Q", "-C", "o", "-s", "32", "0x1500001")
		tool(t, dir, "tpm2_changeauth", "-Q", "-c", "owner", "tenant")
	}
	left := func() string {
		return tool(t, dir, "tpm2_getcap", "handles-persistent") + tool(t, dir, "tpm2_getcap", "handles-nv-index")
	}
	leave()
	if text := left(); !strings.Contains(text, "81000001") || !strings.Contains(text, "1500001") {
		t.Fatalf("the tenant left %q", text)
	}
	if conn, err = open(); err != nil {
		t.Fatal(err)
	}
	err = wantCleared(conn)
	_ = conn.Close() // it serves one at a time
	if err == nil {
		t.Fatal("a TPM with a tenant's key and authorization counts as cleared")
	}
	if s := stepOf(t, clean(t, m, boot.CleanOrder{DryRun: true}), "TPM"); s.State != api.CleanPlanned || !strings.Contains(left(), "81000001") {
		t.Fatalf("a dry run: %+v", s)
	}
	s := stepOf(t, clean(t, m, boot.CleanOrder{}), "TPM")
	if s.State != api.CleanDone || s.Verified == "" {
		t.Fatalf("step %+v", s)
	}
	if text := left(); strings.Contains(text, "81000001") || strings.Contains(text, "1500001") {
		t.Errorf("left are %q", text)
	}
	// The platform's authorization is empty here, so a tenant who forbids it by the lockout's keeps nobody out.
	leave()
	tool(t, dir, "tpm2_changeauth", "-Q", "-c", "lockout", "tenant")
	if s := stepOf(t, clean(t, m, boot.CleanOrder{}), "TPM"); s.State != api.CleanDone || !strings.Contains(s.Method, "platform") {
		t.Errorf("with an authorization of the lockout: %+v", s)
	}
	// Where firmware has set one, as it should, nothing clears it.
	tool(t, dir, "tpm2_changeauth", "-Q", "-c", "lockout", "tenant")
	tool(t, dir, "tpm2_changeauth", "-Q", "-c", "platform", "firmware")
	if s := stepOf(t, clean(t, m, boot.CleanOrder{}), "TPM"); s.State != api.CleanFailed || !strings.Contains(s.Message, "authorization is not empty") {
		t.Errorf("with both authorizations: %+v", s)
	}
}
