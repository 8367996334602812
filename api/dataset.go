package api

import "time"

// The bounds of datasets.
const (
	// MaxDatasetFiles is the number of files that a dataset may have. They are stored as one record.
	MaxDatasetFiles = 1000
	// MaxDatasetURLs is the number of places that a file may be fetched from.
	MaxDatasetURLs = 8
	// MaxDatasetURL and MaxDatasetPath bound texts, in bytes.
	MaxDatasetURL  = 1024
	MaxDatasetPath = 255
	// MaxDatasetBytes bounds all files of a dataset as they are stored, in bytes.
	MaxDatasetBytes = 512 << 10
	// MaxGroupDatasets is the number of datasets that a group may ask for.
	MaxGroupDatasets = 8
)

// DatasetsPath is the directory in which members have their datasets, each by its name.
const DatasetsPath = "/datasets"

// DatasetFile is a file of a dataset, with the places that it can be fetched from.
type DatasetFile struct {
	// Path is where the file is in its dataset, such as 2016/run1.root. It defaults to the last part of the first URL's path.
	Path string `json:"path,omitempty"`
	// URLs are the places of the file, the preferred one first: root://HOST[:PORT]//PATH, http://, or https://.
	URLs []string `json:"urls"`
	// SizeBytes is the file's size, 0 if nobody has said it.
	SizeBytes int64 `json:"size_bytes,omitempty"`
	// Adler32 is the checksum by which sites of high-energy physics know files, 8 hexadecimal digits. SHA256 has 64. One of them is required.
	Adler32 string `json:"adler32,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
}

// DatasetCredential is what the sources of a private dataset ask for: user and password, or a bearer token. It is stored sealed, and no answer has it.
type DatasetCredential struct {
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	Token    string `json:"token,omitempty"`
}

// DatasetRequest is the body of a create.
type DatasetRequest struct {
	// Name is a DNS label, unique among the datasets of the project.
	Name string `json:"name"`
	// Project owns it; it defaults to the token's.
	Project    string             `json:"project,omitempty"`
	Files      []DatasetFile      `json:"files"`
	Credential *DatasetCredential `json:"credential,omitempty"`
}

// Dataset is a dataset as it is stored. Only the API writes it.
type Dataset struct {
	// Name is NAME, or PROJECT.NAME outside the default project.
	Name    string        `json:"name"`
	UID     string        `json:"uid"`
	Project string        `json:"project"`
	User    string        `json:"user,omitempty"`
	Files   []DatasetFile `json:"files"`
	// Sealed is the credential of its sources, sealed for its UID; empty: they ask for none.
	Sealed []byte `json:"sealed,omitempty"`
	// Nodes keep a replica, whether or not members there have the dataset.
	Nodes []string `json:"nodes,omitempty"`
	// Evictions counts, for each node, the requests to remove its replica. A replica that was made under a smaller number goes once no member has it.
	Evictions map[string]int64 `json:"evictions,omitempty"`
	// Checks counts the requests to verify all replicas again.
	Checks    int64     `json:"checks,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// DatasetNodes is the body of a request to replicate a dataset, or to evict its replicas.
type DatasetNodes struct {
	Nodes []string `json:"nodes,omitempty"`
}

// ReplicaPhase is where a replica is in its life.
type ReplicaPhase string

// The phases of a replica.
const (
	ReplicaWaiting  ReplicaPhase = "waiting"  // its node has not begun; the message gives the reason
	ReplicaFetching ReplicaPhase = "fetching" // its files are coming
	ReplicaWhole    ReplicaPhase = "whole"    // all files are there, and their checksums are right
	ReplicaFailed   ReplicaPhase = "failed"   // a file can't be fetched; it is tried again
	ReplicaUnknown  ReplicaPhase = "unknown"  // its node is not heard of
)

// DatasetReplica is a dataset on a node.
type DatasetReplica struct {
	Node  string       `json:"node"`
	Phase ReplicaPhase `json:"phase"`
	// HeldBytes are there, of the OfBytes that are known of.
	HeldBytes int64 `json:"held_bytes"`
	OfBytes   int64 `json:"of_bytes"`
	// Kept: somebody asked for the replica, and it stays. InUse: members have it.
	Kept  bool `json:"kept,omitempty"`
	InUse bool `json:"in_use,omitempty"`
	// FromSourceBytes came from the files' URLs and FromPeersBytes from other nodes, since its agent started.
	FromSourceBytes int64 `json:"from_source_bytes"`
	FromPeersBytes  int64 `json:"from_peers_bytes"`
	// Checked is the number of the last check that the replica has passed, or been repaired after (DatasetStatus.Checks).
	Checked int64  `json:"checked"`
	Message string `json:"message,omitempty"`
}

// DatasetCache is a dataset in the cache of a node. Its bytes are counted when readers close files, since the node's agent started.
type DatasetCache struct {
	Node string `json:"node"`
	// Dataset is its name, where it is not told with the dataset.
	Dataset string `json:"dataset,omitempty"`
	// Running: members of the node reach it. Message says why not, or what is wrong with it.
	Running bool   `json:"running"`
	Message string `json:"message,omitempty"`
	// SizeBytes is how much it may hold, and HeldBytes what is on the disk.
	SizeBytes int64 `json:"size_bytes"`
	HeldBytes int64 `json:"held_bytes"`
	// HitBytes were read that were there, and MissBytes that had to be fetched.
	HitBytes  int64 `json:"hit_bytes"`
	MissBytes int64 `json:"miss_bytes"`
	// AheadBytes were fetched before a reader asked for them: blocks ahead of it, and the rest of blocks of which it asked for a part.
	AheadBytes int64 `json:"ahead_bytes"`
	// AgainBytes were fetched once more after they had been removed for lack of room. TooSmall: they are so many that the cache does not help.
	AgainBytes int64 `json:"again_bytes"`
	TooSmall   bool  `json:"too_small,omitempty"`
	// Restarts is how often its server ended by itself.
	Restarts int64 `json:"restarts,omitempty"`
}

// DatasetStatus is a dataset as the API shows it.
type DatasetStatus struct {
	// Name is NAME, without the project.
	Name    string `json:"name"`
	UID     string `json:"uid"`
	Project string `json:"project"`
	User    string `json:"user,omitempty"`
	// Private: its sources ask for a credential, which is not shown.
	Private bool          `json:"private,omitempty"`
	Files   []DatasetFile `json:"files"`
	// SizeBytes is the sum of the files' sizes, as far as they are known.
	SizeBytes int64            `json:"size_bytes"`
	Replicas  []DatasetReplica `json:"replicas"`
	// Caches are the nodes whose caches have, or may have, parts of it.
	Caches []DatasetCache `json:"caches,omitempty"`
	// Clusters are those whose groups ask for it. Clusters that the token may not see are not among them.
	Clusters []string `json:"clusters"`
	// Errors sum up how long nodes were predicted to fetch it, and how long they did.
	Errors []DataErrors `json:"errors,omitempty"`
	// Reads is the fraction that members read; nil: nobody has read it through a cache.
	Reads     *DataReads `json:"reads,omitempty"`
	Checks    int64      `json:"checks"`
	CreatedAt time.Time  `json:"created_at"`
}

// DatasetsOf returns the names of the datasets that groups ask for, each once, in the order in which they are first named.
func DatasetsOf(groups []Group) []string {
	var names []string
	seen := map[string]bool{}
	for i := range groups {
		for _, text := range groups[i].Datasets {
			if name := ParseDatasetUse(text).Name; !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// DataPlace is what nodes have of a group's datasets. The zero value is of a group without datasets, or one of whose datasets no node has anything.
type DataPlace struct {
	// Whole are the names of the nodes that have all of them.
	Whole []string
	// HeldBytes are what nodes have, by name, and OfBytes what there is, as far as sizes are known.
	HeldBytes map[string]int64
	OfBytes   int64
	// Seconds are what it is predicted to take until members on a node have all of them, by name; nil: of no node that does not have them is that known.
	Seconds map[string]float64
	// Decide returns the ways of the datasets for which the group leaves them open, for members on a node: here of them there, of all that read at once. nil:
	// there are no such datasets. It reads what this place was made of, and nothing else.
	Decide func(node string, here, all int) []DataClaim
}

// DataHeld tells what a node has of the datasets of a group, and which members of the group are there.
type DataHeld struct {
	Group     string   `json:"group"`
	Node      string   `json:"node"`
	HeldBytes int64    `json:"held_bytes"`
	OfBytes   int64    `json:"of_bytes"`
	Members   []string `json:"members,omitempty"`
}
