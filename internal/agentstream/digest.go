package agentstream

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// FilesDigest names the content of generated files: the leader says by it what a member should have, its agent what it has.
func FilesDigest(files []driver.File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %o %t %d\n", f.Path, f.Mode, f.OwnedByUser, len(f.Content))
		h.Write(f.Content)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
