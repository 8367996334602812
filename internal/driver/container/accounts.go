package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/nearmetal/nearmetal/internal/accounts"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/filetree"
)

// accountFiles are those whose accounts are merged, see package accounts.
var accountFiles = []string{"/etc/passwd", "/etc/group"}

// mostAccountBytes bounds a file of accounts.
const mostAccountBytes = 1 << 20

// accountsOf reads the accounts of an image that is seen at view. Its links mean files of the image: /etc/passwd could be one to
// the host's /etc/shadow.
func accountsOf(view string) (map[string]string, error) {
	root, err := filetree.OpenRoot(view)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found := map[string]string{}
	for _, name := range accountFiles {
		data, err := root.ReadFile(name, mostAccountBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the image's accounts: %w", err)
		}
		found[name] = string(data)
	}
	return found, nil
}

// addAccounts returns files with the accounts of the image that the generated ones lack, by name and by number.
func addAccounts(files []driver.File, images map[string]string) []driver.File {
	files = slices.Clone(files)
	for i, f := range files {
		if more, ok := images[f.Path]; ok {
			files[i].Content = []byte(accounts.Merge(string(f.Content), more))
		}
	}
	return files
}

// withAccounts adds what was kept of the image's accounts when the member was started.
func (d *Driver) withAccounts(m driver.Member) (driver.Member, error) {
	if m.Assignment.EnvironmentDigest == "" {
		return m, nil
	}
	var images map[string]string
	data, err := os.ReadFile(d.path(m.Assignment.ID, fileAccounts))
	if err == nil {
		err = json.Unmarshal(data, &images)
	}
	if err != nil {
		return m, err
	}
	m.Files = addAccounts(m.Files, images)
	return m, nil
}
