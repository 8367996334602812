package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// imageBeside makes an image's tree in a directory that has a file of the host's beside it.
func imageBeside(t *testing.T) (image, secret string) {
	t.Helper()
	host := t.TempDir()
	image, secret = filepath.Join(host, "image"), filepath.Join(host, "secret")
	err := errors.Join(os.WriteFile(secret, []byte("root:hash:1\n"), 0o600), os.MkdirAll(filepath.Join(image, "etc/ssh"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return image, secret
}

func TestAccountsThatAnImageLinksToTheHostsAreNotRead(t *testing.T) {
	for name, target := range map[string]string{"absolute": "", "relative": "../../secret"} {
		t.Run(name, func(t *testing.T) {
			image, secret := imageBeside(t)
			if target == "" {
				target = secret
			}
			if err := os.Symlink(target, filepath.Join(image, "etc/passwd")); err != nil {
				t.Fatal(err)
			}
			accounts, err := accountsOf(image)
			if err != nil || accounts["/etc/passwd"] != "" {
				t.Errorf("got %q, %v; want no accounts", accounts, err)
			}
		})
	}
	t.Run("within the image", func(t *testing.T) {
		image, _ := imageBeside(t)
		err := errors.Join(os.WriteFile(filepath.Join(image, "passwd"), []byte("own:x:5:5\n"), 0o600), os.Symlink("/passwd", filepath.Join(image, "etc/passwd")))
		if err != nil {
			t.Fatal(err)
		}
		accounts, err := accountsOf(image)
		if err != nil || accounts["/etc/passwd"] != "own:x:5:5\n" {
			t.Errorf("got %q, %v; want the image's own", accounts, err)
		}
	})
}

func TestAGeneratedFileIsNotWrittenThroughALinkOfAnImage(t *testing.T) {
	needs.Root(t, "gives files to others")
	image, secret := imageBeside(t)
	host := filepath.Dir(secret)
	if err := os.Symlink(host, filepath.Join(image, "etc/ssh/conf.d")); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "root")
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := driver.Member{Assignment: api.Assignment{UserIDs: api.IDRange{First: 3_000_000_000}}}
	plan := etcPlan{
		copies: []environment.Bind{{Source: filepath.Join(image, "etc/ssh"), Target: "/etc/ssh"}},
		files:  []driver.File{{Path: "/etc/ssh/conf.d/secret", Content: []byte("generated"), Mode: 0o644}},
	}
	if err := fillEtc(root, m, plan); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("error %v, want that the path leaves the root", err)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "root:hash:1\n" {
		t.Errorf("the host's file holds %q (%v)", text, err)
	}
}

func TestNoMoreOfAnImageIsCopiedThanThereIsRoomFor(t *testing.T) {
	needs.Root(t, "gives files to others")
	image, _ := imageBeside(t)
	big := filepath.Join(image, "etc/ssh/big")
	if err := errors.Join(os.WriteFile(big, nil, 0o644), os.Truncate(big, mostCopied+1), os.Chmod(big, 0o644)); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	plan := etcPlan{copies: []environment.Bind{{Source: filepath.Join(image, "etc/ssh"), Target: "/etc/ssh"}}}
	if err := fillEtc(root, driver.Member{Assignment: api.Assignment{UserIDs: api.IDRange{First: 3_000_000_000}}}, plan); err == nil || !strings.Contains(err.Error(), "exceed 64 MiB") {
		t.Errorf("error %v, want that it is too much", err)
	}
}
