// Package state gives the keys and values of the state store their meaning: typed records, and the one way a decision
// becomes true.
//
// Who writes what is the package's point. API handlers write intents, jobs, projects, tokens, drains and builds through Repo. Only the leader writes
// records, assignment chunks, quarantines, usage, node spans and machines' records, through Leader: every such commit is guarded by the election, so a deposed leader can
// write nothing. Readers use Cache, a view of everything that is kept current by a watch; what it hands out is shared and must
// never be modified. The package must never decide anything: it knows no placement and no transitions.
//
// Start with Repo and kinds.go (everything that is stored, one registration a kind), then leader.go (Commit: how a decision is written) and machineleader.go (the same for machines), then cache.go.
package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/store"
)

// Behavioural errors; test with errors.Is. Those of internal/store come through as they are: store.ErrConflict (decide anew
// from a newer view), store.ErrNotLeader.
var (
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken.
	ErrExists = errors.New("already exists")
	// ErrNoProject: the project that is named does not exist.
	ErrNoProject = errors.New("no such project")
	// ErrNoNetwork: a network that is named does not exist, or is being deleted.
	ErrNoNetwork = errors.New("no such network")
	// ErrNoDataset: a dataset that is named does not exist.
	ErrNoDataset = errors.New("no such dataset")
	// ErrNoSecurityGroup: a security group that is named does not exist.
	ErrNoSecurityGroup = errors.New("no such security group")
	// ErrNoVolume: a volume that is named, or its snapshot, does not exist, or was deleted.
	ErrNoVolume = errors.New("no such volume")
	// ErrDeleted: the volume was deleted, and is kept for a while.
	ErrDeleted = errors.New("was deleted")
	// ErrImporting: the volume waits for the backup that it is made of. ErrNotImporting: it does not, and has content.
	ErrImporting    = errors.New("waits for a backup, and has no content yet")
	ErrNotImporting = errors.New("waits for no backup")
	// ErrPurging: the volume is being wiped, and can't be brought back.
	ErrPurging = errors.New("being purged")
	// ErrAccess: a cluster asks to write to a volume that nobody may write to.
	ErrAccess = errors.New("allows readers only")
	// ErrOneMachine: a cluster asks for a block volume, and is not one virtual machine.
	ErrOneMachine = errors.New("is a block volume")
	// ErrOwned: the volume is the home of another cluster.
	ErrOwned = errors.New("no other cluster can have it attached")
	// ErrInUse: it can't go while something depends on it.
	ErrInUse = errors.New("in use")
	// ErrOtherMachine: a node of that name is known, and it is another machine.
	ErrOtherMachine = errors.New("already known as another machine")
	// ErrNameUsed: a project of this name was deleted, and jobs, events and usage of it may still be kept, which are nobody else's.
	ErrNameUsed = errors.New("the name was used before")
	// ErrNewerFormat: the state was written by a newer version of the program.
	ErrNewerFormat = errors.New("the state was written by a newer version")
	// ErrOlderFormat: the state was written by an older version of the program, whose format this one does not read.
	ErrOlderFormat = errors.New("the state was written by an older version")
	// ErrForeignState: the store holds something that no nearmetal began.
	ErrForeignState = errors.New("the store is not empty and holds no state of nearmetal")
)

// Format is the version of the stored state this program reads and writes.
const Format = 7

// Repo reads and writes typed state. It may be used from many goroutines.
type Repo struct {
	store store.Store
}

// New returns a Repo over s.
func New(s store.Store) *Repo { return &Repo{store: s} }

// Store returns the store underneath, for what is not typed (elections).
func (r *Repo) Store() store.Store { return r.store }

type formatRecord struct {
	Format int `json:"format"`
}

// CheckVersion writes the format of the state on the first start, and refuses state of another format (ErrNewerFormat, ErrOlderFormat) and a
// store that holds something else (ErrForeignState). It must succeed before anything else is read or written; it changes nothing when it fails.
func (r *Repo) CheckVersion(ctx context.Context) error {
	for {
		e, ok, err := r.store.Get(ctx, keyFormat)
		if err != nil {
			return fmt.Errorf("read the format of the state: %w", err)
		}
		if ok {
			return checkFormat(e)
		}
		err = r.beginState(ctx)
		if errors.Is(err, store.ErrConflict) {
			continue // another server's first start was quicker; check what it wrote
		}
		return err
	}
}

// checkFormat refuses another format than this program's.
func checkFormat(e store.Entry) error {
	var f formatRecord
	if err := decode(e, &f); err != nil {
		return err
	}
	switch {
	case f.Format > Format:
		return fmt.Errorf("%w: its format is %d, this program reads formats up to %d; nothing was changed; "+
			"start a newer nearmetal, or restore the backup made before the upgrade", ErrNewerFormat, f.Format, Format)
	case f.Format < Format:
		return fmt.Errorf("%w: its format is %d, this program reads format %d only; nothing was changed; "+
			"start the nearmetal that wrote it, or start over with an empty state directory (--state)", ErrOlderFormat, f.Format, Format)
	}
	return nil
}

// beginState writes the format into an empty store. One that has a format by then is a store.ErrConflict.
func (r *Repo) beginState(ctx context.Context) error {
	snap, err := r.store.List(ctx, "")
	if err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	for _, e := range snap.Entries {
		if e.Key == keyFormat {
			return store.ErrConflict
		}
	}
	if len(snap.Entries) > 0 {
		return fmt.Errorf("%w: it has %d keys, %q the first, but no format; nothing was changed; "+
			"use an empty state directory (--state), or restore a backup", ErrForeignState, len(snap.Entries), snap.Entries[0].Key)
	}
	_, err = r.store.Commit(ctx, []store.Cond{{Key: keyFormat}}, []store.Op{put(keyFormat, formatRecord{Format: Format})})
	if err != nil {
		return fmt.Errorf("write the format of the state: %w", err)
	}
	return nil
}

// put is the write of v at key, whose prefix must be registered for the type of v, or one that v points to. Encoding can't fail: every stored
// type is plain data, which a test proves.
func put(key string, v any) store.Op {
	prefix, _ := splitKey(key)
	kind := registered(prefix)
	if kind == nil {
		panic(fmt.Sprintf("state: %q is under no prefix of kinds.go", key))
	}
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false) // else each <, > and & of a tenant takes six bytes
	if err := encoder.Encode(kind.bounded(v)); err != nil {
		panic(fmt.Sprintf("state: %T can't be encoded: %v", v, err))
	}
	return store.Op{Key: key, Value: bytes.TrimSuffix(data.Bytes(), []byte("\n"))}
}

func decode(e store.Entry, v any) error {
	if err := json.Unmarshal(e.Value, v); err != nil {
		return fmt.Errorf("stored state at %q (revision %d) can't be read: %w; it was not written by nearmetal or is damaged, restore a backup", e.Key, e.Revision, err)
	}
	return nil
}
