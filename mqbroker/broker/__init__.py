"""What a broker keeps and answers: topics, groups, offsets, clients, held pulls, and the processors over them."""
