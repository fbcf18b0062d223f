package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"path"
	"strconv"
	"sync"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/tidb/store/mockstore/unistore/tikv"
	"github.com/pingcap/tidb/util/codec"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// control is the part of the server that is only for tests. It counts requests, loses requests or answers, delays polls,
// and splits regions. ServeHTTP is its interface.
type control struct {
	store   *tikv.Server
	regions *tikv.MockRegionManager
	// A one-phase commit holds the fence for reading, from before Unistore takes its timestamp until its write can be
	// read. Each read first waits until all such commits have ended. Otherwise it could miss the write of a commit with
	// a smaller timestamp than its own.
	fence sync.RWMutex

	mutex  sync.Mutex
	counts map[string]int
	faults []fault
	// The clients whose polls are delayed, by the address of the server that they use. The channel is closed when the
	// polls may continue.
	held map[string]chan struct{}
}

// A fault loses the next request of a method before it is executed (lost is "request"), or its answer (lost is "answer").
// The method PrewritePrimary is a KvPrewrite that locks the primary key.
type fault struct{ method, lost string }

func newControl(store *tikv.Server, regions *tikv.MockRegionManager) *control {
	return &control{store: store, regions: regions, counts: map[string]int{}, held: map[string]chan struct{}{}}
}

func (c *control) add(what string, count int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.counts[what] += count
}

func (c *control) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, do grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	lost, err := c.arrive(ctx, method, request)
	if err != nil || lost == "request" {
		return nil, status.Error(codes.Unavailable, "the request is lost")
	}
	switch r := request.(type) {
	case *kvrpcpb.PrewriteRequest:
		if answer, err := c.writeLocked(ctx, r); answer != nil || err != nil {
			return answer, err
		}
		if r.TryOnePc {
			c.add("OnePhase", 1)
			c.fence.RLock()
			defer c.fence.RUnlock()
		}
	case *kvrpcpb.GetRequest, *kvrpcpb.BatchGetRequest, *kvrpcpb.ScanRequest:
		c.awaitOnePhase()
	}
	answer, err := do(ctx, request)
	if lost == "answer" {
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return answer, err
}

// Waits until all in-flight one-phase commits have ended.
func (c *control) awaitOnePhase() {
	c.fence.Lock()
	//lint:ignore SA2001 the lock is only waited for
	c.fence.Unlock()
}

// Replaces each mutation that only locks a key by a write of the key's present value. TiKV keeps a committed lock: a
// transaction that began before the commit conflicts with it if it writes the key. Unistore does not keep such locks, but
// it detects the conflict with a write.
func (c *control) writeLocked(ctx context.Context, r *kvrpcpb.PrewriteRequest) (*kvrpcpb.PrewriteResponse, error) {
	locked := map[string]*kvrpcpb.Mutation{}
	read := &kvrpcpb.BatchGetRequest{Context: r.Context, Version: r.StartVersion - 1}
	for _, mutation := range r.Mutations {
		if mutation.Op == kvrpcpb.Op_Lock {
			locked[string(mutation.Key)] = mutation
			read.Keys = append(read.Keys, mutation.Key)
		}
	}
	if len(locked) == 0 {
		return nil, nil
	}
	c.awaitOnePhase()
	found, err := c.store.KvBatchGet(ctx, read)
	if err != nil {
		return nil, err
	}
	if found.RegionError != nil {
		return &kvrpcpb.PrewriteResponse{RegionError: found.RegionError}, nil
	}
	for _, mutation := range locked {
		mutation.Op = kvrpcpb.Op_Del
	}
	for _, pair := range found.Pairs {
		if pair.Error != nil {
			return &kvrpcpb.PrewriteResponse{Errors: []*kvrpcpb.KeyError{pair.Error}}, nil
		}
		locked[string(pair.Key)].Op, locked[string(pair.Key)].Value = kvrpcpb.Op_Put, pair.Value
	}
	return nil, nil
}

// Counts a request, and returns what to lose: "request", "answer", or "" for nothing. If the polls of this client are
// delayed, a poll waits here.
func (c *control) arrive(ctx context.Context, method string, request any) (string, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.counts[method]++
	c.counts["Requests"]++
	if isPoll(request) {
		c.counts["Polls"]++
		c.counts["Polls of "+address(ctx)]++
		if held := c.held[address(ctx)]; held != nil {
			c.mutex.Unlock()
			defer c.mutex.Lock()
			select {
			case <-held:
			case <-ctx.Done():
				return "", ctx.Err()
			}
			return "", nil
		}
	}
	if isReadOfChanges(request) {
		c.counts["ReadsOfChanges"]++
	}
	for i, fault := range c.faults {
		if fault.method == method || fault.method == "PrewritePrimary" && locksPrimary(request) {
			c.faults = append(c.faults[:i], c.faults[i+1:]...)
			return fault.lost, nil
		}
	}
	return "", nil
}

// Whether a request locks the primary key of its transaction.
func locksPrimary(request any) bool {
	prewrite, is := request.(*kvrpcpb.PrewriteRequest)
	if !is {
		return false
	}
	for _, mutation := range prewrite.Mutations {
		if bytes.Equal(mutation.Key, prewrite.PrimaryLock) {
			return true
		}
	}
	return false
}

// Returns the letter of the table that a key belongs to (crate keyspace, keys.rs). It follows the prefix, which ends with
// a slash.
func table(key []byte) byte {
	if _, rest, found := bytes.Cut(key, []byte("/")); found && len(rest) > 0 {
		return rest[0]
	}
	return 0
}

// Whether a request is a poll of the stream of changes: a scan of the heads of all shards.
func isPoll(request any) bool {
	scan, is := request.(*kvrpcpb.ScanRequest)
	return is && table(scan.StartKey) == 'b'
}

// Whether a request reads changes that a poll has found.
func isReadOfChanges(request any) bool {
	get, is := request.(*kvrpcpb.BatchGetRequest)
	return is && len(get.Keys) > 0 && table(get.Keys[0]) == 'd'
}

// ServeHTTP answers /counts, /keys, /put?key=KEY&value=VALUE, /split?at=KEY, /lose?method=METHOD&what=request|answer&times=N,
// /lose-nothing, /hold?of=ADDRESS and /release?of=ADDRESS.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch r.URL.Path {
	case "/counts":
		_ = json.NewEncoder(w).Encode(c.counts)
	case "/keys":
		for _, key := range c.keys() {
			fmt.Fprintf(w, "%q\n", key)
		}
	case "/put":
		if err := c.put([]byte(query.Get("key")), []byte(query.Get("value"))); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	case "/split":
		c.split([]byte(query.Get("at")))
	case "/lose":
		times, _ := strconv.Atoi(query.Get("times"))
		for ; times > 0; times-- {
			c.faults = append(c.faults, fault{query.Get("method"), query.Get("what")})
		}
	case "/lose-nothing":
		c.faults = nil
	case "/hold":
		c.held[query.Get("of")] = make(chan struct{})
	case "/release":
		if held := c.held[query.Get("of")]; held != nil {
			close(held)
			delete(c.held, query.Get("of"))
		}
	default:
		http.NotFound(w, r)
	}
}

func (c *control) allRegions() []*metapb.Region {
	var found []*metapb.Region
	// Unistore finds no region for an empty key.
	for key := []byte{0}; ; {
		region, _, _ := c.regions.GetRegionByKey(key)
		found = append(found, region)
		if key = region.EndKey; len(key) == 0 {
			return found
		}
	}
}

// Splits the region that contains the key: a new region begins at the key.
func (c *control) split(key []byte) {
	encoded := codec.EncodeBytes(nil, key)
	region, _, _ := c.regions.GetRegionByKey(encoded)
	peer := c.regions.AllocID()
	c.regions.SplitRaw(region.Id, c.regions.AllocID(), encoded, []uint64{peer}, peer)
}

// Writes a key in a transaction of its own.
func (c *control) put(key, value []byte) error {
	region, _, _ := c.regions.GetRegionByKey(codec.EncodeBytes(nil, key))
	at := &kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: region.Peers[0]}
	start := now()
	prewritten, err := c.store.KvPrewrite(context.Background(), &kvrpcpb.PrewriteRequest{
		Context:      at,
		Mutations:    []*kvrpcpb.Mutation{{Op: kvrpcpb.Op_Put, Key: key, Value: value}},
		PrimaryLock:  key,
		StartVersion: start,
		LockTtl:      3000,
	})
	if err != nil || prewritten.RegionError != nil || len(prewritten.Errors) > 0 {
		return fmt.Errorf("prewrite: %v, %v", prewritten, err)
	}
	committed, err := c.store.KvCommit(context.Background(), &kvrpcpb.CommitRequest{
		Context:       at,
		StartVersion:  start,
		Keys:          [][]byte{key},
		CommitVersion: now(),
	})
	if err != nil || committed.RegionError != nil || committed.Error != nil {
		return fmt.Errorf("commit: %v, %v", committed, err)
	}
	return nil
}

// Returns a new timestamp.
func now() uint64 {
	physical, logical := tikv.GetTS()
	return uint64(physical)<<18 + uint64(logical)
}

// Returns all keys that have a value now.
func (c *control) keys() [][]byte {
	version := now()
	var found [][]byte
	for _, region := range c.allRegions() {
		_, start, _ := codec.DecodeBytes(region.StartKey, nil)
		answer, err := c.store.KvScan(context.Background(), &kvrpcpb.ScanRequest{
			Context:  &kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: region.Peers[0]},
			StartKey: start,
			Limit:    math.MaxUint32,
			Version:  version,
			KeyOnly:  true,
		})
		if err == nil {
			for _, pair := range answer.Pairs {
				found = append(found, pair.Key)
			}
		}
	}
	return found
}
