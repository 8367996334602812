package bootagent

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

// machineID is 32 hexadecimal digits that follow from this boot's session and don't tell it.
func machineID(session string) string {
	sum := sha256.Sum256([]byte("nearmetal machine-id " + session))
	return hex.EncodeToString(sum[:16]) + "\n"
}

// program returns the first path that is there, "" for none.
func program(paths ...string) string {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// startConsoles offers a login of the image on each of the kernel's consoles.
func (a *Agent) startConsoles() {
	if a.welcome.RootPasswordHash == "" {
		return
	}
	getty := program("/sbin/agetty", "/usr/sbin/agetty")
	login := program("/bin/login", "/usr/bin/login")
	if getty == "" || login == "" {
		a.log.Warn("no login on the console: the image lacks agetty or login (Debian: util-linux and login)")
		return
	}
	text, err := os.ReadFile("/sys/class/tty/console/active")
	if err != nil {
		a.log.Warn("no login on the console", "error", err)
		return
	}
	for console := range strings.FieldsSeq(string(text)) {
		args := []string{getty, "--noclear", "--keep-baud", console, "115200,57600,38400,9600", "vt220"}
		if console == "tty0" {
			// The first virtual console, which tty0 shows.
			args = []string{getty, "--noclear", "tty1", "linux"}
		}
		// agetty ends with each login that ends; that is no failure.
		go a.init.keep(process{name: "the login on " + console, args: args}, true, nil)
	}
}

// sshDir holds this boot's host key: a machine has no place to keep one, and an image must not hold one.
const sshDir = "/run/nearmetal/ssh"

// startSSH runs the image's sshd for the keys that the server gave.
func (a *Agent) startSSH() {
	sshd, keygen := program("/usr/sbin/sshd"), program("/usr/bin/ssh-keygen")
	if len(a.welcome.AuthorizedKeys) == 0 {
		return
	}
	if sshd == "" || keygen == "" {
		a.log.Warn("no SSH: the image has no sshd (Debian: openssh-server)")
		return
	}
	key := filepath.Join(sshDir, "host_ed25519")
	_ = os.MkdirAll(sshDir, 0o700)
	_ = os.MkdirAll("/run/sshd", 0o755)
	go func() {
		if status, err := a.init.command(process{name: "ssh-keygen", args: []string{keygen, "-q", "-t", "ed25519", "-N", "", "-f", key}}); err != nil || status.ExitStatus() != 0 {
			a.log.Warn("no SSH: the host key can't be made", "status", status.ExitStatus(), "error", err)
			return
		}
		a.init.keep(process{name: "sshd", args: []string{
			sshd, "-D", "-e", "-o", "HostKey=" + key, "-o", "PermitRootLogin=prohibit-password", "-o", "PasswordAuthentication=no", "-o", "PidFile=none",
		}}, false, nil)
	}()
}
