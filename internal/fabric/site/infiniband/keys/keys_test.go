package keys

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysAreMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	made, err := Managed(path)
	if err != nil || made.Management == 0 || made.Manager == 0 || made.Access == 0 || made.Management == made.Manager {
		t.Fatal("the keys are not three numbers: ", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if again, err := Managed(path); err != nil || again != made {
		t.Errorf("the second server has other keys: %v", err)
	}
	if err := os.WriteFile(path, []byte("m_key 0x1\nm_ke"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Managed(path)
	if text, _ := os.ReadFile(path); err == nil || string(text) != "m_key 0x1\nm_ke" {
		t.Errorf("damaged keys are replaced, and ports obey the old ones: %v", err)
	}
}

func TestAFileOfKeysIsReadStrictly(t *testing.T) {
	load := func(text string, mode fs.FileMode) (Keys, error) {
		path := filepath.Join(t.TempDir(), FileName)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return Load(path)
	}
	if k, err := load("# ours\nm_key 0x1122334455667788\nsm_key 7 # of both\n", 0o600); err != nil || k != (Keys{0x1122334455667788, 7, 1}) {
		t.Errorf("got %+v, %v", k, err)
	}
	for text, want := range map[string]string{
		"sm_key 7\n": "lack m_key", "m_key 0\n": "line 1: m_key is not a number", "m_key 0x11223344556677889\n": "line 1: m_key is not a number", "\nguid 3\n": "line 2: write m_key",
	} {
		if _, err := load(text, 0o600); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := load("m_key 1\n", 0o640); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
}

func TestOptionsOfOpenSMHaveTheKeysOfTheFabricAlone(t *testing.T) {
	got, err := Keys{1, 2, 3}.Options("qos TRUE")
	const want = "qos TRUE\nm_key 0x0000000000000001\nsm_key 0x0000000000000002\nsa_key 0x0000000000000003\nm_key_lease_period 60\nm_key_protection_level 2\nm_key_lookup FALSE\n"
	if err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, option := range []string{"m_key", "sm_key", "sa_key", "m_key_lease_period", "m_key_protection_level", "m_key_lookup"} {
		if _, err := (Keys{1, 2, 3}).Options("qos TRUE\n" + option + " 0\n"); err == nil || !strings.Contains(err.Error(), "line 2 sets "+option+",") {
			t.Errorf("%s: %v", option, err)
		}
	}
}
