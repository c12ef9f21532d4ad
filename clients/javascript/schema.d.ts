// Written by generate.js from the server's OpenAPI description.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description Only documents inside an area of the map. */
        Area: {
            /**
             * @description Name of the map that the polygon was drawn on.
             * @example 9f86d081884c7d65
             */
            map: string;
            /** @description Corners in the coordinates of the map, 0 to 65535. Documents are inside by the even-odd rule. */
            polygon: components["schemas"]["Polygon"];
        };
        /** @description A value of an attribute: a boolean, a number, a string or several strings. */
        Attribute: boolean | number | string | string[];
        /** @description Attributes by name. */
        Attributes: {
            [key: string]: components["schemas"]["Attribute"];
        };
        /** @description A backup of an index on the server's disk. */
        Backup: {
            documents: number;
            /** @description Name in the folder `backups` of the data directory. */
            name: string;
        };
        /** @description Backups of an index. */
        BackupList: {
            /** @description Names, oldest first. */
            backups: string[];
        };
        Batch: {
            /** @description Queries, each with its own options. */
            queries: components["schemas"]["Search"][];
        };
        /** @description Answers to several queries. */
        BatchFound: {
            /** @description Answers in the order of the queries. */
            answers: components["schemas"]["Found"][];
        };
        /**
         * @description Bits of a code.
         * @enum {integer}
         */
        Bits: 16 | 32 | 64 | 128;
        /** @description The result of a change. It is on disk. */
        Changed: {
            /** @description Number of documents added, replaced or deleted. Skipped duplicates do not count. */
            changed: number;
            /**
             * @description Number of texts of this change that are longer than the encoder takes: only their beginnings are searched. An index
             *     created with `chunk` searches all of each.
             */
            cut: number;
            /** @description Number of documents in the index after the commit. */
            documents: number;
            duplicates?: null | components["schemas"]["Duplicated"];
        };
        /** @description The chunk of a document by which it was found. */
        Chunk: {
            /**
             * Format: int32
             * @description Which of the document's chunks, counted from 0.
             */
            number: number;
            /**
             * Format: int32
             * @description How many chunks the document has.
             */
            of: number;
            /**
             * Format: int64
             * @description Where it begins in the document's text, in bytes of UTF-8.
             */
            start: number;
        };
        /** @description How long texts are split into chunks. */
        ChunkOption: {
            /**
             * @description Tokens that a chunk repeats of the one before, at most half of `tokens`. Default: an eighth of them.
             * @default null
             */
            overlap: number | null;
            /**
             * @description Tokens of a chunk at most. Default: as many as the encoder takes.
             * @default null
             */
            tokens: number | null;
        };
        /** @description How texts are split. */
        ChunkSizesView: {
            /** @description Tokens that a chunk repeats of the one before. */
            overlap: number;
            /** @description Tokens of a chunk at most. */
            tokens: number;
        };
        /**
         * @description Reason of a failure. Programs use `code`, people the message.
         * @enum {string}
         */
        Code: "not_json" | "bad_request" | "too_large" | "answer_too_large" | "wrong_media_type" | "wrong_host" | "cross_site" | "no_key" | "unknown_key" | "not_allowed" | "unknown_index" | "index_unavailable" | "unknown_document" | "unknown_saved_query" | "unknown_job" | "unknown_path" | "wrong_method" | "bad_filter" | "bad_vector" | "bad_query" | "bad_document" | "unknown_model" | "index_exists" | "index_busy" | "unsupported" | "quota_exceeded" | "overloaded" | "timeout" | "stopping" | "storage" | "internal";
        /** @description Usage of the codebooks. */
        Codebooks: {
            documents: number;
            /** @description Entropy of each codebook in bits, at most log2 of the number of codewords. */
            entropy: number[];
            /** @description Number of documents per codeword, one list per codebook. */
            usage: number[][];
        };
        /** @description The documents of a codeword. */
        Codeword: {
            /** @description Documents, the most typical of the codeword first. */
            documents: components["schemas"]["Member"][];
            /** @description Terms that characterise them, most distinctive first. */
            marks: components["schemas"]["Mark"][];
        };
        Count: {
            /** @default null */
            area: null | components["schemas"]["Area"];
            /**
             * @description Filter, as in a query. Default: all documents.
             * @default null
             * @example places:japan AND year:[1987 TO 1988]
             */
            filter: string | null;
        };
        /** @description A number of documents. */
        Counted: {
            /** @description Number of documents that match. */
            count: number;
        };
        /**
         * @description A new index, with the model of another index (`like`), or with an encoder and untrained codes (`encoder`, `bits`). An
         *     untrained index can be trained later on its own documents.
         */
        Create: {
            /** @default null */
            bits: null | components["schemas"]["Bits"];
            /** @default null */
            chunk: null | components["schemas"]["ChunkOption"];
            /**
             * @description Name of an encoder on the server. Default: all-MiniLM-L6-v2.
             * @default null
             * @example all-MiniLM-L6-v2
             */
            encoder: string | null;
            /**
             * @description Language of keyword search: a code such as `de`, `ja` or `any`. Default: `en`.
             * @default null
             * @example en
             */
            language: string | null;
            /**
             * @description Name of an index whose model is used.
             * @default null
             */
            like: string | null;
            /** @default int8 */
            rerank_vectors: components["schemas"]["RerankVectors"];
            /** @default all */
            store: components["schemas"]["Store"];
        };
        /** @description Options of finding duplicates. */
        Dedup: {
            /** @default null */
            by: null | components["schemas"]["DuplicatesBy"];
            /**
             * @description Delete the duplicates; the first document of each group stays.
             * @default false
             */
            delete: boolean;
            /**
             * @description Maximum number of groups in the result of the job.
             * @default 1000
             */
            groups: number | null;
            /**
             * @description Give each duplicate this attribute, with the id of the document it repeats.
             * @default null
             */
            mark: string | null;
            /**
             * @description Nearest documents by code that each document is compared with.
             * @default 100
             */
            neighbours: number | null;
            /**
             * Format: float
             * @description Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
             * @default null
             */
            threshold: number | null;
        };
        /** @description Documents to delete: by ids, or by a filter. */
        Delete: {
            /**
             * @description Filter, as in a query.
             * @example year:1987
             */
            filter?: string | null;
            /** @description Ids. Unknown ids are ignored. */
            ids?: components["schemas"]["Id"][] | null;
        };
        Details: {
            /** @description Stable name of the reason. */
            code: components["schemas"]["Code"];
            /**
             * Format: int64
             * @description Documents of the stream that are committed.
             */
            committed?: number | null;
            /**
             * Format: int64
             * @description Line of the stream that cannot be stored, from 1.
             */
            line?: number | null;
            /** @description What is wrong, and what to do. */
            message: string;
            /** @description Name of the option that is wrong, if it is one. */
            option?: string | null;
            /**
             * Format: int64
             * @description Position of the first wrong character of the filter, from 0.
             */
            position?: number | null;
            /**
             * @description Error type for OpenAI's clients.
             * @example invalid_request_error
             */
            type: string;
        };
        /**
         * @description Distance of codes: `norm` (sum of norms, as the paper's authors rank), `squared` (sum of squares) or `hamming` (number of codebooks whose codewords differ).
         * @enum {string}
         */
        Distance: "norm" | "squared" | "hamming";
        /** @description A document on the map. */
        DocumentOfMap: {
            id: components["schemas"]["Id"];
            /** Format: int32 */
            point: number;
            /** @description Its attribute `title`, or the beginning of its text; `null` if the index stores no texts. */
            title?: string | null;
            /**
             * Format: int32
             * @description Number of its topic; `null` for an outlier.
             */
            topic?: number | null;
        };
        DocumentsOfMap: {
            /** @description Documents in the order of the points; `null` where one was deleted since. */
            documents: (null | components["schemas"]["DocumentOfMap"])[];
        };
        /** @description A new document that repeats another. */
        DuplicateOf: {
            /** @description The most similar document. A document that replaces several has an entry for each. */
            duplicate_of: components["schemas"]["Id"];
            id: components["schemas"]["Id"];
            /** Format: float */
            similarity: number;
        };
        /** @description What became of new documents that repeat another. */
        Duplicated: {
            /** @description The first 1,000 of them. */
            documents: components["schemas"]["DuplicateOf"][];
            /** @description Number of new documents that were added with the attribute `duplicate_of`. */
            marked: number;
            /** @description Number of documents that new ones replaced. */
            replaced: number;
            /** @description Number of new documents that were left out. */
            skipped: number;
        };
        /**
         * @description What decides whether two documents are alike.
         * @enum {string}
         */
        DuplicatesBy: "text" | "words" | "vectors";
        /** @description Texts to encode. */
        Embed: {
            /** @description If given, it must be the number of values of a vector. */
            dimensions?: number | null;
            encoding_format?: components["schemas"]["Encoding"];
            /** @description One text or several. */
            input: components["schemas"]["Input"];
            /** @description What the texts are: documents (default) or queries. */
            input_type?: components["schemas"]["InputType"];
            /**
             * @description Name of an index, for embeddings of its encoder. With the suffix `/code`: codes, a codeword number per codebook.
             * @example news
             */
            model: string;
            /** @description Ignored. OpenAI's clients may send it. */
            user?: string | null;
        };
        /** @description Embeddings or codes of texts. */
        Embedded: {
            /** @description One per text, in their order. */
            data: components["schemas"]["Embedding"][];
            /** @description Model of the request. */
            model: string;
            /** @description Always `list`. */
            object: string;
            /** @description Number of tokens. */
            usage: components["schemas"]["Usage"];
        };
        /** @description The embedding or code of one text. */
        Embedding: {
            /** @description Embedding or code. */
            embedding: components["schemas"]["Values"];
            /** @description Position of the text in the request, from 0. */
            index: number;
            /** @description Always `embedding`. */
            object: string;
        };
        /** @enum {string} */
        Encoding: "float" | "base64";
        /** @description An example of what to find: one of `text`, `vector` and `document`. */
        Example: {
            /** @default null */
            document: null | components["schemas"]["Id"];
            /** @default null */
            text: string | null;
            /** @default null */
            vector: null | components["schemas"]["Vector"];
            /**
             * Format: double
             * @description Weight against the other examples. Default: 1.
             * @default null
             */
            weight: number | null;
        };
        /** @description A value of an attribute. */
        FacetValue: {
            /**
             * Format: int64
             * @description Number of documents that have it.
             */
            count: number;
            /** @description Filter for these documents. */
            filter: string;
            value: components["schemas"]["Attribute"];
        };
        /** @description An attribute over all documents. */
        FacetView: {
            /**
             * Format: int64
             * @description Number of distinct values.
             */
            distinct: number;
            /**
             * Format: int64
             * @description Number of documents that have it.
             */
            documents: number;
            /**
             * Format: double
             * @description Greatest number, if it has numbers.
             */
            greatest?: number | null;
            /**
             * Format: double
             * @description Smallest number, if it has numbers.
             */
            least?: number | null;
            name: string;
            /** @description Most frequent values. */
            values: components["schemas"]["FacetValue"][];
        };
        /** @description All attributes and the labels. */
        Facets: {
            /** @description Attributes, ordered by name. */
            facets: components["schemas"]["FacetView"][];
        };
        Fetched: {
            /** @description Documents in the order of the ids; `null` for an unknown id. */
            documents: (null | components["schemas"]["StoredDocument"])[];
        };
        /** @description Options of finding topics. */
        FindTopics: {
            /**
             * @description Give documents that were added later the number of the nearest topic, in this attribute that `mark` wrote before. No
             *     topics are found anew: the result has the numbers of documents.
             * @default null
             */
            extend: string | null;
            /**
             * @description Whether documents that are added later get their topic as they are added, in the attribute of `mark` or `extend`. `false`
             *     ends it. Default: as before.
             * @default null
             */
            follow: boolean | null;
            /**
             * @description Give each document this attribute, with the number of its topic; outliers have none.
             * @default null
             */
            mark: string | null;
            /**
             * @description Attribute with dates, for the trend. Default: the first one that has dates, if any.
             * @default null
             */
            over: string | null;
            /**
             * Format: int64
             * @description Seed of the first centres. The same seed gives the same topics.
             * @default 1
             */
            seed: number | null;
            /**
             * @description Terms of a topic.
             * @default 10
             */
            terms: number | null;
            /**
             * @description Number of topics. Default: chosen by how well the clusters are told apart.
             * @default null
             */
            topics: number | null;
            /**
             * @description Typical documents of a topic.
             * @default 3
             */
            typical: number | null;
        };
        /** @description The hits of a query, best first. */
        Found: {
            /** @description How the query was executed, with `explain`. */
            explanation?: Record<string, never> | null;
            /** @description Hits of this page. */
            hits: components["schemas"]["Hit"][];
            /** @description Time of each stage in milliseconds, for the whole batch of queries. */
            milliseconds: {
                [key: string]: number;
            };
            /** @description Cursor of the next page, for `after`; `null` on the last page. */
            next?: string | null;
        };
        /**
         * @description What gives a document its place in an index with chunks.
         * @enum {string}
         */
        GroupName: "best" | "sum";
        /** @description Health of the server. */
        Health: {
            /** @description Always `ok`. */
            status: string;
        };
        Hit: {
            attributes: components["schemas"]["Attributes"];
            chunk?: null | components["schemas"]["Chunk"];
            /** @description Distance codebook by codebook, with `explain`. */
            codebook_distances?: number[] | null;
            /**
             * Format: float
             * @description Distance of its code to the query.
             */
            distance: number;
            id: components["schemas"]["Id"];
            labels: string[];
            /**
             * Format: float
             * @description Score that hits are ordered by, falling: the cosine after re-ranking, minus the distance by codes alone, or the fused
             *     score of hybrid search. Hits behind the re-ranked candidates have -1 minus the distance.
             */
            score: number;
            /** @description Codewords that it has in common with the query, and what they stand for, with `explain`. */
            shared?: components["schemas"]["Shared"][] | null;
            snippet?: null | components["schemas"]["Snippet"];
            /** @description Text, if the index stores texts. In an index with chunks it is that of the chunk. */
            text?: string | null;
        };
        /** @description A whole number or a string. `5` and `"5"` are the same. */
        Id: number | string;
        Ids: {
            ids: components["schemas"]["Id"][];
        };
        /** @description Documents that are looked for on a map. */
        IdsOfMap: {
            /** @description Ids of documents. */
            ids: components["schemas"]["Id"][];
        };
        IndexList: {
            /** @description Open indexes, ordered by name. */
            indexes: components["schemas"]["IndexView"][];
            /** @description Indexes that cannot be opened. */
            unavailable: components["schemas"]["UnavailableIndex"][];
        };
        IndexView: {
            /** @description Bits of a code. */
            bits: number;
            bytes?: null | components["schemas"]["Sizes"];
            chunk?: null | components["schemas"]["ChunkSizesView"];
            /** @description Number of chunks, in an index with chunks. Not for a key with a filter. */
            chunks?: number | null;
            /** @description Number of codewords per codebook. */
            codebook_size: number;
            /** @description Number of deleted documents that are still on disk. Not for a key with a filter. */
            deleted?: number | null;
            /** @description Number of documents, without deleted ones; for a key with a filter, of those that match it. */
            documents: number;
            /** @description Whether it was created over HTTP, and can be dropped over HTTP. */
            droppable: boolean;
            /** @description Encoder; `null` for an index of user vectors. */
            encoder?: string | null;
            /**
             * Format: int32
             * @description Version of the directory format.
             */
            format: number;
            /** @description Whether a job is using it. */
            job_running: boolean;
            /** @description Whether a query can weigh the kind: the model has tables by kind. */
            kinds: boolean;
            /** @description Language of keyword search. */
            language: string;
            /** @description Method that trained the model. */
            method: string;
            /** @description Fingerprint of the model. */
            model: string;
            name: string;
            num_codebooks: number;
            /** @description Number of waiting queries. */
            queries_waiting: number;
            /** @description How the index stores embeddings for re-ranking. */
            rerank_vectors: components["schemas"]["RerankVectors"];
            /** @description Not for a key with a filter. */
            segments?: number | null;
            /** @description Always `open`. */
            status: string;
            /** @description What the index stores of a document. */
            store: components["schemas"]["Store"];
            /** @description Whether texts can be searched and added: the server has the encoder. */
            texts: boolean;
            /** @description Number of values of an embedding. */
            width: number;
            /** @description Number of waiting writes. */
            writes_waiting: number;
        };
        /** @description One text or several, or the token ids of one text or several, with the tokens that mark its ends. */
        Input: string | string[] | number[] | number[][];
        /**
         * @description What a text is: encoders with prompts put another one in front of queries than of documents.
         * @enum {string}
         */
        InputType: "document" | "query";
        /** @description The jobs since the server started. */
        JobList: {
            /** @description Jobs, newest first. */
            jobs: components["schemas"]["JobView"][];
        };
        JobView: {
            /** @description A current measurement, such as a loss. */
            detail: string;
            /**
             * Format: int64
             * @description Finished units of the stage.
             */
            done: number;
            /** @description Error message of a failed job. */
            error?: string | null;
            /**
             * Format: int64
             * @description Number of the job.
             */
            id: number;
            /** @description Name of the index. */
            index: string;
            /**
             * @description Kind of work: `train`, `dedup`, `topics`, `map` or `recall`.
             * @example train
             */
            kind: string;
            /** @description The last notes of the job. */
            notes: string[];
            /** @description Result of the job: for training the model's fingerprint and best score, otherwise what was found. */
            result?: Record<string, never> | null;
            /**
             * Format: double
             * @description Duration so far, in seconds.
             */
            seconds: number;
            /** @description What it does now; `waiting for other jobs` before its turn. */
            stage: string;
            /**
             * Format: int64
             * @description Start time, in seconds since 1970.
             */
            started: number;
            /** @description Status of the job. */
            status: components["schemas"]["Status"];
            /**
             * Format: int64
             * @description All units of the stage, if known.
             */
            total?: number | null;
        };
        /** @description A name on the map. */
        LabelOfMap: {
            /** Format: int64 */
            documents: number;
            /** @description It shows while the map is divided into at least so many clusters, */
            from: number;
            text: string;
            /** @description and at most so many. */
            to: number;
            /**
             * Format: int32
             * @description The median of the coordinates of its documents.
             */
            x: number;
            /** Format: int32 */
            y: number;
        };
        /** @description Options of a map. */
        MakeMap: {
            /**
             * Format: int64
             * @description Seed of topics and landmarks. The same seed gives the same map.
             * @default 1
             */
            seed: number | null;
            /**
             * @description Number of topics that colour and label the map. Default: chosen by how well the clusters are told apart.
             * @default null
             */
            topics: number | null;
        };
        /** @description The last map. */
        MapAbout: {
            /** @description Whether the index has not changed since. */
            current: boolean;
            /** @description Number of points. */
            documents: number;
            /** @description Names of topics and of their merges. */
            labels: components["schemas"]["LabelOfMap"][];
            /** @description Name of the map, for `area`. Equal maps have equal names. */
            map: string;
            /** @description Topics by number. */
            topics: components["schemas"]["TopicOfMap"][];
        };
        MapView: {
            map?: null | components["schemas"]["MapAbout"];
        };
        /** @description A term that characterises a codeword. */
        Mark: {
            /**
             * Format: double
             * @description Share of the codeword's documents that have it, in a sample.
             */
            inside: number;
            /**
             * Format: double
             * @description Share of the other documents that have it, in a sample.
             */
            outside: number;
            term: string;
        };
        /** @description New documents that match saved queries. */
        MatchList: {
            /** @description In the order of insertion of their documents, then of the names of queries. */
            matches: components["schemas"]["MatchView"][];
            /** @description Whether there are more matches now. */
            more: boolean;
            /** @description Where the next request begins. */
            next: string;
        };
        /** @description A document that matches a saved query. */
        MatchView: {
            /**
             * Format: float
             * @description Cosine of the stored vector; of the best chunk of a long text. `null` for a filter alone, and without stored vectors.
             */
            cosine?: number | null;
            /**
             * Format: float
             * @description Distance of the code; of the nearest chunk. `null` for a filter alone.
             */
            distance?: number | null;
            id: components["schemas"]["Id"];
            /** @description Name of the query. */
            query: string;
        };
        /** @description Options of a measurement. */
        MeasureRecall: {
            /**
             * @description Neighbours that should be found.
             * @default 10
             */
            k: number | null;
            /**
             * @description Documents that are queries, over all windows together.
             * @default 400
             */
            queries: number | null;
            /**
             * @description Candidates that a search re-ranks.
             * @default 1000
             */
            rerank: number | null;
            /**
             * @description Parts of the index, in the order of insertion, that are measured apart.
             * @default 4
             */
            windows: number | null;
        };
        /** @description A document of a codeword. */
        Member: {
            attributes: components["schemas"]["Attributes"];
            id: components["schemas"]["Id"];
            labels: string[];
            /** @description Text, if the index stores texts. */
            text?: string | null;
        };
        /** @description The models for embeddings. */
        ModelList: {
            /** @description Two models per index: its embeddings and its codes. */
            data: components["schemas"]["ModelView"][];
            /** @description Always `list`. */
            object: string;
        };
        /** @description A model for embeddings. */
        ModelView: {
            /**
             * Format: int64
             * @description Always 0: the time is unknown.
             */
            created: number;
            /** @description Name of the model. */
            id: string;
            /** @description Always `model`. */
            object: string;
            /** @description Always `micpq`. */
            owned_by: string;
        };
        /** @description A document to store. */
        NewDocument: {
            /** @description Attributes, for filters. */
            attributes?: components["schemas"]["Attributes"];
            /** @description Id. A document with the same id is replaced. */
            id: components["schemas"]["Id"];
            labels?: string[];
            /**
             * @description Text. The server encodes it.
             * @example Oil prices rise as OPEC cuts its output
             */
            text?: string | null;
            vector?: null | components["schemas"]["Vector"];
        };
        /** @description A query to save: a text or a vector with a threshold, a filter, or both. */
        NewSavedQuery: {
            /**
             * Format: float
             * @description Least cosine of the query and the stored vector of a document. The index must store rerank vectors.
             * @default null
             * @example 0.5
             */
            cosine: number | null;
            /**
             * Format: float
             * @description Greatest distance of a document's code.
             * @default null
             */
            distance: number | null;
            /**
             * @description Filter that a document must pass, as in a query.
             * @default null
             * @example places:japan
             */
            filter: string | null;
            /**
             * @description Text. It is encoded once, now.
             * @default null
             * @example strikes at ports
             */
            text: string | null;
            /** @default null */
            vector: null | components["schemas"]["Vector"];
        };
        /**
         * @description What to do with a new document that repeats one of the index or one before it: `keep` it, `skip` it (a document with a known id is an update, and stored), `mark` it with the attribute `duplicate_of`, or `replace` the older ones.
         * @enum {string}
         */
        OnDuplicateName: "keep" | "skip" | "mark" | "replace";
        PlacesOfMap: {
            /** @description Points in the order of the ids; `null` for a document that is not on the map. */
            points: (number | null)[];
        };
        /** @description Points of a map. */
        PointsOfMap: {
            /** @description Numbers of points. */
            points: number[];
        };
        Polygon: number[][];
        /**
         * @description Which encoder reads the texts of a query.
         * @enum {string}
         */
        QueryEncoderName: "full" | "fast";
        /** @description Whether the server accepts requests, and which indexes are unavailable. */
        Readiness: {
            /** @description `ok`, or `degraded` if some indexes are unavailable. */
            status: string;
            /**
             * @description Names of the indexes that cannot be opened and that the key of the request reaches. On a server with keys, a request
             *     without one is told no names.
             */
            unavailable: string[];
        };
        /** @description The last measurement of recall. */
        RecallView: {
            /** @description The report; `null` if recall was not measured since the server started. */
            report?: Record<string, never> | null;
        };
        /** @description The body of every failure. */
        Refusal: {
            error: components["schemas"]["Details"];
        };
        /** @description How many candidates are re-ranked: `auto` (1000 if the index stores rerank vectors), `off`, or a number. */
        RerankOption: ("auto" | "off") | number;
        /**
         * @description How an index stores embeddings for re-ranking: `none`, `int8` (a byte per value) or `f16` (two bytes per value).
         * @enum {string}
         */
        RerankVectors: "none" | "int8" | "f16";
        /** @description The saved queries of an index. */
        SavedQueryList: {
            /** @description Queries, by name. */
            queries: components["schemas"]["SavedQueryView"][];
        };
        /** @description A saved query. */
        SavedQueryView: {
            /**
             * Format: float
             * @description Least cosine of a match.
             */
            cosine?: number | null;
            /**
             * Format: float
             * @description Greatest distance of a match.
             */
            distance?: number | null;
            filter?: string | null;
            name: string;
            /**
             * Format: int64
             * @description Documents at this position in the order of insertion, and later ones, are new to it.
             */
            since: number;
            /** @description Text; `null` for a vector, and for a filter alone. */
            text?: string | null;
        };
        /** @description A query: one of `text`, `vector` and `document`, or several in `like`. */
        Search: {
            /**
             * @description Cursor: `next` of an earlier answer to the same query.
             * @default null
             */
            after: string | null;
            /** @default null */
            area: null | components["schemas"]["Area"];
            /** @default null */
            distance: null | components["schemas"]["Distance"];
            /** @default null */
            document: null | components["schemas"]["Id"];
            /**
             * @description Whether hits have text, labels and attributes.
             * @default true
             */
            documents: boolean | null;
            /**
             * @description Whether the answer has an explanation, and hits have their distance codebook by codebook.
             * @default false
             */
            explain: boolean | null;
            /**
             * @description Only documents that match this filter: `places:japan AND year:[1987 TO 1988]`.
             * @default null
             */
            filter: string | null;
            /** @default null */
            group: null | components["schemas"]["GroupName"];
            /**
             * Format: double
             * @description Weight of the keywords (BM25), from 0 (only codes) to 1 (only keywords).
             * @default 0
             */
            hybrid: number | null;
            /**
             * @description Number of hits.
             * @default 10
             */
            k: number | null;
            /**
             * @description Keywords of hybrid search and snippets. Default: the query texts.
             * @default null
             */
            keywords: string | null;
            /**
             * Format: double
             * @description From the particular document (0) to everything of its kind (1), for an index whose model knows kinds. Above 0 nothing is
             *     re-ranked unless `rerank` says so.
             * @default 0
             */
            kind: number | null;
            /**
             * @description Find documents like several examples together.
             * @default null
             */
            like: components["schemas"]["Example"][] | null;
            /** @default null */
            query_encoder: null | components["schemas"]["QueryEncoderName"];
            /**
             * Format: double
             * @description Only documents whose code has at most this distance.
             * @default null
             */
            radius: number | null;
            /** @default null */
            rerank: null | components["schemas"]["RerankOption"];
            /**
             * @description Whether hits have the part of their text that matches the keywords best.
             * @default false
             */
            snippets: boolean | null;
            /**
             * @description Find documents like this text.
             * @default null
             * @example oil prices and the economy
             */
            text: string | null;
            /** @default null */
            vector: null | components["schemas"]["Vector"];
        };
        /** @description A codeword that a hit has in common with its query. */
        Shared: {
            /** @description Number of the codebook, from 0. */
            codebook: number;
            /**
             * Format: int32
             * @description Number of the codeword, from 0.
             */
            codeword: number;
            /** @description Terms that characterise the documents of the codeword, most distinctive first. */
            terms: string[];
        };
        /** @description Bytes on disk by part. */
        Sizes: {
            /**
             * Format: int64
             * @description Packed codes.
             */
            codes: number;
            /**
             * Format: int64
             * @description Columns of ids, codes and attributes.
             */
            columns: number;
            /**
             * Format: int64
             * @description Texts, labels and attributes.
             */
            documents: number;
            /**
             * Format: int64
             * @description The model.
             */
            model: number;
            /**
             * Format: int64
             * @description Everything else.
             */
            other: number;
            /**
             * Format: int64
             * @description Rerank vectors.
             */
            rerank_vectors: number;
            /**
             * Format: int64
             * @description The inverted index.
             */
            terms: number;
        };
        /** @description A part of a text with the matching keywords marked. */
        Snippet: {
            /** @description Start and end of every match in it, in characters (Unicode scalar values). */
            marks: number[][];
            /** @description The part of the text. */
            text: string;
        };
        /**
         * @description Status of a job.
         * @enum {string}
         */
        Status: "running" | "succeeded" | "failed" | "cancelled";
        /**
         * @description What an index stores of a document: `all` (id, code, text, labels and attributes, with the terms of texts) or `codes` (only id and code).
         * @enum {string}
         */
        Store: "all" | "codes";
        /** @description A document of the index. */
        StoredDocument: {
            attributes: components["schemas"]["Attributes"];
            /** @description Code: the number of the codeword in each codebook. */
            code: number[];
            id: components["schemas"]["Id"];
            labels: string[];
            /**
             * Format: int64
             * @description Position in the order of insertion.
             */
            sequence: number;
            /** @description Text, if the index stores texts. */
            text?: string | null;
        };
        /** @description The result of a stream. The counted documents are on disk. */
        Streamed: {
            /**
             * Format: int64
             * @description Number of documents added or replaced. Skipped duplicates do not count.
             */
            changed: number;
            /**
             * Format: int64
             * @description Number of documents in the index.
             */
            documents: number;
            duplicates?: null | components["schemas"]["Duplicated"];
            /** @description Reasons of the first ten skipped lines. */
            reasons: string[];
            /**
             * Format: int64
             * @description Number of skipped lines.
             */
            skipped: number;
        };
        /** @description A topic of the map. */
        TopicOfMap: {
            /** Format: int64 */
            documents: number;
            name: string;
            number: number;
        };
        /** @description The last topics. */
        TopicsView: {
            /**
             * @description The result of the last job that found topics, with the `attribute` that it wrote; `null` if none did since the server
             *     started, or since the last training.
             */
            report?: Record<string, never> | null;
        };
        Train: {
            /**
             * @description Documents per training step.
             * @default null
             */
            batch: number | null;
            /** @default null */
            bits: null | components["schemas"]["Bits"];
            /**
             * @description Maximum number of epochs.
             * @default null
             */
            epochs: number | null;
            /**
             * @description Method, as `micpq train --method` names it. It must read embeddings. Default: that of a build.
             * @default null
             */
            method: string | null;
            /**
             * @description Maximum number of training documents; a larger index is sampled evenly.
             * @default 200000
             */
            sample: number | null;
            /**
             * Format: int64
             * @default null
             */
            seed: number | null;
        };
        /** @description How the model of an index was trained. */
        Training: {
            method: string;
            /** @description Curves, scores and times of the training; `null` for an untrained model. */
            metrics?: Record<string, never> | null;
            options: Record<string, never>;
        };
        /** @description An index that cannot be opened. */
        UnavailableIndex: {
            /** @description Whether it was created over HTTP, and can be dropped over HTTP. */
            droppable: boolean;
            name: string;
            /** @description Error message. The server retries every few seconds. */
            reason: string;
            /** @description Always `unavailable`. */
            status: string;
        };
        /** @description Documents to store. */
        Upsert: {
            /** @description The documents. Either all of them are stored, or none. */
            documents: components["schemas"]["NewDocument"][];
            duplicate_by?: null | components["schemas"]["DuplicatesBy"];
            /**
             * Format: float
             * @description Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
             */
            duplicate_threshold?: number | null;
            on_duplicate?: null | components["schemas"]["OnDuplicateName"];
        };
        /** @description Number of tokens. */
        Usage: {
            /** @description Number of tokens of all texts, after truncation to the encoder's maximum length. */
            prompt_tokens: number;
            /** @description The same as `prompt_tokens`. */
            total_tokens: number;
        };
        /** @description A value of an attribute on the map. */
        ValueOfMap: {
            /**
             * Format: int64
             * @description Number of documents of the index that have it.
             */
            documents: number;
            value: string;
        };
        /** @description An embedding or a code. */
        Values: number[] | string;
        /** @description The values of an attribute by point. */
        ValuesOfMap: {
            /** @description Base64 of a little-endian `u16` per point: the position of its value, 65534 for another value, 65535 for none. */
            points: string;
            /** @description The most frequent values. */
            values: components["schemas"]["ValueOfMap"][];
        };
        /** @description An embedding of the index's encoder: a list of numbers, or base64 of its values as little-endian 32-bit floats. */
        Vector: number[] | string;
        /** Format: binary */
        VectorBytes: string;
        /** @description Version of the server. */
        Version: {
            /**
             * Format: int32
             * @description Version of the index format that it writes.
             */
            index_format: number;
            /** @description Always `micpq`. */
            name: string;
            /** @description Version of the program. */
            version: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
