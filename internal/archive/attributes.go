package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttributes bounds the names of a file's attributes together, and each value, in bytes. The kernel allows no more.
const maxAttributes = 64 << 10

// The attributes of access control lists, and a list's layout (linux/posix_acl_xattr.h).
const (
	aclAccess, aclDefault = "system.posix_acl_access", "system.posix_acl_default"

	aclHead, aclEntry = 4, 8
	aclVersion        = 2
	aclUser, aclGroup = 0x02, 0x08
)

// The attributes that layers have besides (Documentation/filesystems/overlayfs.rst, capabilities(7)). opaqueYes: nothing below the directory shows through.
const (
	overlayPrefix, opaque = "trusted.overlay.", "trusted.overlay.opaque"
	opaqueYes             = "y"
	capability            = "security.capability"
)

// travels reports whether an attribute is one of the file's content. Those that give rights on a host are not, but of the files of a layer.
func travels(name string, layer bool) bool {
	return strings.HasPrefix(name, "user.") || name == aclAccess || name == aclDefault || layer && (name == opaque || name == capability)
}

// refersBelow are attributes of overlayfs by which a file has its content, or a directory its name, from a layer below, where only a mount with the same
// layers finds it.
var refersBelow = []string{overlayPrefix + "redirect", overlayPrefix + "metacopy"}

// attributes reads the extended attributes of a file that are in archives.
func attributes(f *os.File, layer bool) (map[string]string, error) {
	names := make([]byte, maxAttributes)
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing its attributes: %w", err)
	}
	var all map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if layer && slices.Contains(refersBelow, name) {
			return nil, fmt.Errorf("%w: its content is in a layer below (%s)", ErrRefused, name)
		}
		if !travels(name, layer) {
			continue
		}
		value := make([]byte, maxAttributes)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, fmt.Errorf("reading its attribute %s: %w", name, err)
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = string(value[:n])
	}
	return all, nil
}

// setAttributes gives a file the extended attributes of its records.
func setAttributes(f *os.File, records map[string]string, layer bool) error {
	for key, value := range records {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok {
			continue
		}
		name = unescapeKey.Replace(name)
		if !travels(name, layer) || name == opaque && value != opaqueYes {
			return fmt.Errorf("%w: it has the attribute %q", ErrRefused, name)
		}
		if name == aclAccess || name == aclDefault {
			if err := checkACL([]byte(value)); err != nil {
				return err
			}
		}
		if err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0); err != nil {
			return fmt.Errorf("setting its attribute %s: %w", name, err)
		}
	}
	return nil
}

// checkACL refuses a list with IDs that no member has.
func checkACL(list []byte) error {
	if len(list) < aclHead || (len(list)-aclHead)%aclEntry != 0 || binary.LittleEndian.Uint32(list) != aclVersion {
		return fmt.Errorf("%w: its access control list can't be read", ErrRefused)
	}
	for list = list[aclHead:]; len(list) > 0; list = list[aclEntry:] {
		tag, id := binary.LittleEndian.Uint16(list), binary.LittleEndian.Uint32(list[4:])
		if (tag == aclUser || tag == aclGroup) && id > MaxID {
			return fmt.Errorf("%w: its access control list has the ID %d, and the highest is %d", ErrRefused, id, MaxID)
		}
	}
	return nil
}
