package changedfiles_test

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestWhatNearmetalWroteIsNeverSavedAndWhatUsersWroteIs(t *testing.T) {
	for name, want := range map[string]bool{
		"etc/nearmetal": true, "etc/nearmetal/ssh/id_ed25519": true, "etc/nearmetal/tls/member.key": true, "etc/nearmetal/munge.key": true, "var/lib/nearmetal/member.json": true,
		"etc/ssh/ssh_host_ed25519_key": true, "etc/ssh/ssh_host_ed25519_key-cert.pub": true, "etc/ssh/authorized_principals/root": true, "root/.ssh/authorized_keys": true,
		"etc/hosts": true, "etc/hosts.nearmetal-new": true, "etc/machine-id": true, "etc/shadow-": true, "run/x": true, "tmp": true, "var/log/syslog": true, "var/tmp/x": true,
		"etc": false, "etc/ssh": false, "etc/shadow": false, "etc/passwd": false, "etc/group": false, "etc/nearmetals": false, "etc/hosts.allow": false, "root/.bash_history": false,
		"home/hpc/.ssh/id_rsa": false, "home/hpc/run/x": false, "home/hpc/etc/hosts": false, "opt/tmp/x": false, "root/.ssh": false, "var/lib/mine/x": false,
	} {
		if got := changedfiles.ForEnvironment.Omitted(name, false); got != want {
			t.Errorf("Omitted(%q) = %v, want %v", name, got, want)
		}
	}
	if changedfiles.ForEnvironment.Omitted("var/log/service", true) {
		t.Error("directories of logs are omitted, and whoever writes there can't make them")
	}
}

// A member that comes back has its logs and what it put aside; what Nearmetal writes is written again.
func TestAMemberKeepsMoreThanAnEnvironment(t *testing.T) {
	for name, want := range map[string]bool{
		"etc/nearmetal/ssh/id_ed25519": true, "etc/ssh/ssh_host_ed25519_key": true, "var/lib/nearmetal/x": true, "root/.ssh/authorized_keys": true, "etc/hosts": true,
		"run/x": true, "tmp/x": true, "var/log/syslog": false, "var/tmp/x": false, "var/cache/apt/x": false, "home/hpc/x": false, "etc/shadow": false,
	} {
		if got := changedfiles.ForMember.Omitted(name, false); got != want {
			t.Errorf("Omitted(%q) = %v, want %v", name, got, want)
		}
	}
	key := privateKeys(t)["OpenSSH"]
	data := saved(t, map[string]string{"home/hpc/.ssh/id": key, "var/log/x": "x"})
	member := func(p *changedfiles.Policy) { p.Use = changedfiles.ForMember }
	if err := check(t, data, member); err != nil {
		t.Errorf("a user's own key and a log: %v", err)
	}
	var found *changedfiles.KeysError
	if err := check(t, data, func(p *changedfiles.Policy) { member(p); p.Secrets = changedfiles.Marks([]byte(key)) }); !errors.As(err, &found) || len(found.Own) != 1 {
		t.Errorf("a key of the cluster itself: %v", err)
	}
	if err := check(t, saved(t, map[string]string{"etc/nearmetal/x": "x"}), member); !errors.Is(err, changedfiles.ErrNotOmitted) {
		t.Errorf("what is never saved: %v", err)
	}
	if changedfiles.ForMember.Check() != nil || changedfiles.ForEnvironment.Check() != nil || changedfiles.Use("x").Check() == nil {
		t.Error("uses that are known and unknown are not told apart")
	}
}

// privateKeys are keys in the forms in which programs write them.
func privateKeys(t *testing.T) map[string]string {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(ed, "me")
	if err != nil {
		t.Fatal(err)
	}
	openssh := string(pem.EncodeToMemory(block))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8 := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	body := base64.StdEncoding.EncodeToString(der)
	return map[string]string{
		"OpenSSH": openssh, "PKCS 8": pkcs8, "lines of DOS": strings.ReplaceAll(pkcs8, "\n", "\r\n"),
		"within text":      strings.Repeat("text ", 1000) + pkcs8 + "more",
		"in JSON":          `{"key": "` + strings.ReplaceAll(pkcs8, "\n", `\n`) + `"}`,
		"encrypted, PEM":   "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\n" + body + "\n-----END RSA PRIVATE KEY-----\n",
		"encrypted, PKCS8": "-----BEGIN ENCRYPTED PRIVATE KEY-----\n" + body + "\n-----END ENCRYPTED PRIVATE KEY-----\n",
		"OpenPGP":          "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + body + "\n-----END PGP PRIVATE KEY BLOCK-----\n",
		"PuTTY":            "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n" + body[:44] + "\n",
		"age":              "# created\nAGE-SECRET-KEY-1" + strings.Repeat("QPZRY9X8GF", 6)[:58] + "\n",
	}
}

// saved is an archive of files, made as a member's agent makes it.
func saved(t *testing.T, files map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return packed(t, dir)
}

func packed(t *testing.T, dir string) []byte {
	t.Helper()
	in, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	var out bytes.Buffer
	if _, err := archive.Pack(t.Context(), archive.Source{Dir: in, VolumeBytes: 1 << 30, Scratch: t.TempDir(), Layer: true}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func check(t *testing.T, data []byte, change func(*changedfiles.Policy)) error {
	t.Helper()
	p := changedfiles.Policy{MaxBytes: 64 << 20, MaxFiles: 100}
	if change != nil {
		change(&p)
	}
	_, err := changedfiles.CheckArchive(t.Context(), bytes.NewReader(data), p)
	return err
}

func TestPrivateKeysAreFoundInAnyForm(t *testing.T) {
	for form, key := range privateKeys(t) {
		// Wherever the key lies with respect to what is read at once.
		for _, before := range []int{0, 100, 4<<10 - 20, 64<<10 - 40, 64 << 10, 256<<10 - 1} {
			data := saved(t, map[string]string{"opt/a": "harmless", "opt/file": strings.Repeat("x", before) + "\n" + key, "opt/z": "harmless"})
			var found *changedfiles.KeysError
			if err := check(t, data, nil); !errors.As(err, &found) || !slices.Equal(found.Private, []string{"/opt/file"}) || len(found.Own) > 0 {
				t.Errorf("%s after %d bytes: %v", form, before, err)
			}
		}
	}
}

func TestWordsAboutKeysAreNoKeys(t *testing.T) {
	for name, text := range map[string]string{
		"a program":       "\x00-----BEGIN OPENSSH PRIVATE KEY-----\n\x00-----END OPENSSH PRIVATE KEY-----\n\x00-----BEGIN PRIVATE KEY-----\x00",
		"a manual":        "A key begins with -----BEGIN RSA PRIVATE KEY----- and a line end.\n",
		"a public key":    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000000000000000000000000000000000000000000 me\n",
		"a certificate":   "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("MIIB", 30) + "\n-----END CERTIFICATE-----\n",
		"a sample in doc": "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
	} {
		if err := check(t, saved(t, map[string]string{"opt/file": text}), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysOfTheClusterAreNeverSavedAndThoseOfUsersWhereNamed(t *testing.T) {
	keys := privateKeys(t)
	own, mine := keys["OpenSSH"], keys["PKCS 8"]
	munge := strings.Repeat("0123456789abcdef", 8)
	secrets := changedfiles.Marks([]byte(own), []byte(munge))
	data := saved(t, map[string]string{"home/hpc/mine": mine, "opt/copy": own, "opt/munge": "key=" + munge, "opt/part": own[200:]})
	policy := func(keep ...string) func(*changedfiles.Policy) {
		return func(p *changedfiles.Policy) { p.Secrets, p.KeepKeys = secrets, keep }
	}
	var found *changedfiles.KeysError
	if err := check(t, data, policy()); !errors.As(err, &found) || !slices.Equal(sorted(found.Private), []string{"/home/hpc/mine"}) ||
		!slices.Equal(sorted(found.Own), []string{"/opt/copy", "/opt/munge", "/opt/part"}) {
		t.Errorf("without exceptions: %v", err)
	}
	if err := check(t, data, policy("/home/hpc/mine", "/opt/copy", "/opt/munge", "/opt/part")); !errors.As(err, &found) || len(found.Private) > 0 || len(found.Own) != 3 {
		t.Errorf("with exceptions for all: %v", err)
	}
	if err := check(t, saved(t, map[string]string{"home/hpc/mine": mine}), policy("/home/hpc/mine")); err != nil {
		t.Errorf("a key of one's own that is named: %v", err)
	}
	if err := check(t, saved(t, map[string]string{"home/hpc/mine": mine}), policy("/home/hpc/other", "home/hpc/mine", "mine")); !errors.As(err, &found) || len(found.Private) != 1 {
		t.Errorf("a key of one's own that is not named: %v", err)
	}
	// The beginning of keys is the same in many.
	if err := check(t, saved(t, map[string]string{"home/hpc/other": privateKeys(t)["OpenSSH"]}), policy("/home/hpc/other")); err != nil {
		t.Errorf("another key of the same kind: %v", err)
	}
}

func sorted(list []string) []string { slices.Sort(list); return list }

func TestManyFilesWithKeysAreToldInPart(t *testing.T) {
	files, key := map[string]string{}, privateKeys(t)["PKCS 8"]
	for n := range 25 {
		files[fmt.Sprintf("opt/%d", n)] = key
	}
	var found *changedfiles.KeysError
	if err := check(t, saved(t, files), nil); !errors.As(err, &found) || len(found.Private) != 20 || !strings.HasSuffix(err.Error(), ", and in others") {
		t.Errorf("%v", err)
	}
}

func TestKeysInAttributesAreFound(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(path, "user.key", []byte(privateKeys(t)["PKCS 8"]), 0); err != nil {
		needs.Missing(t, "no attributes of users here: %v", err)
	}
	var found *changedfiles.KeysError
	if err := check(t, packed(t, dir), nil); !errors.As(err, &found) {
		t.Errorf("%v", err)
	}
}

func TestWhatAMemberSendsIsBounded(t *testing.T) {
	data := saved(t, map[string]string{"opt/a": strings.Repeat("a", 1000), "opt/b": strings.Repeat("b", 1000)}) // in all 4 entries
	for name, change := range map[string]func(*changedfiles.Policy){
		"a large file":         func(p *changedfiles.Policy) { p.MaxBytes = 999 },
		"large files together": func(p *changedfiles.Policy) { p.MaxBytes = 1999 },
		"many files":           func(p *changedfiles.Policy) { p.MaxFiles = 3 },
	} {
		if err := check(t, data, change); !errors.Is(err, changedfiles.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := check(t, data, func(p *changedfiles.Policy) { p.MaxBytes, p.MaxFiles = 2000, 4 }); err != nil {
		t.Errorf("at the bounds: %v", err)
	}
	// Holes count: they take time to read, and the layer has them as zeros.
	dir := t.TempDir()
	path := filepath.Join(dir, "hole")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 65<<20)); err != nil {
		t.Fatal(err)
	}
	if err := check(t, packed(t, dir), nil); !errors.Is(err, changedfiles.ErrTooLarge) {
		t.Errorf("a hole: %v", err)
	}
}

func TestAMemberThatSendsWhatIsNeverSavedIsRefused(t *testing.T) {
	for _, name := range []string{"etc/machine-id", "etc/nearmetal/ssh/id", "var/log/x", "run/x"} {
		if err := check(t, saved(t, map[string]string{name: "x"}), nil); !errors.Is(err, changedfiles.ErrNotOmitted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// archived is an archive of one entry that no agent writes.
func archived(t *testing.T, h *tar.Header) []byte {
	t.Helper()
	var plain, out bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := errors.Join(w.WriteHeader(h), w.Close()); err != nil {
		t.Fatal(err)
	}
	compressed, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compressed.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	trailer := archive.Trailer{Files: 1, Bytes: int64(plain.Len()), SHA256: fmt.Sprintf("%x", sha256.Sum256(plain.Bytes()))}
	if err := errors.Join(compressed.Close(), trailer.Write(&out)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDevicesAreRefused(t *testing.T) {
	for name, h := range map[string]*tar.Header{
		"a character device": {Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
		"a block device":     {Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 7},
	} {
		if err := check(t, archived(t, h), nil); !errors.Is(err, archive.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := check(t, archived(t, &tar.Header{Typeflag: tar.TypeChar, Name: "gone"}), nil); err != nil {
		t.Errorf("a whiteout: %v", err)
	}
}

func TestATreeIsSearchedWithoutFollowingLinks(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	key := privateKeys(t)["OpenSSH"]
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "key"), []byte(key), 0o600), os.Mkdir(filepath.Join(dir, "opt"), 0o755),
		os.Symlink(filepath.Join(outside, "key"), filepath.Join(dir, "opt/link")), os.Symlink(outside, filepath.Join(dir, "opt/dir")),
		unix.Mkfifo(filepath.Join(dir, "opt/pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := changedfiles.CheckTree(t.Context(), dir, nil); err != nil {
		t.Errorf("without a key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "opt/key"), []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	var found *changedfiles.KeysError
	if err := changedfiles.CheckTree(t.Context(), dir, nil); !errors.As(err, &found) || !slices.Equal(found.Private, []string{"/opt/key"}) {
		t.Errorf("with a key: %v", err)
	}
	if err := changedfiles.CheckTree(t.Context(), dir, []string{"/opt/key"}); err != nil {
		t.Errorf("with a key that is named: %v", err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc/machine-id"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := changedfiles.CheckTree(t.Context(), dir, []string{"/opt/key"}); !errors.Is(err, changedfiles.ErrNotOmitted) {
		t.Errorf("with what is never saved: %v", err)
	}
}
